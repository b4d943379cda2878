//! Pipelines on threads, compared with one rank that trains the whole model.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::num::NonZeroU32;
use std::ops::Range;

use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, WorldSize};
use bonfire_parallel::{Axes, Output, Pass, Pipeline, PipelineError, WeightGradients};
use bonfire_plan::Axis;
use bonfire_plan::pipeline::{Kind, Schedule, Shape, partition};
use bonfire_testkit::{assert_each_says, connected, local};
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, Placement, World};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

mod divided;
mod equality;
mod evaluation;
mod failure;
mod overlap;
mod seconds;
mod shapes;
mod tied;

const TOKENS: usize = 7;
/// The matrices of a layer are large enough to be cut into rows.
const WIDTH: usize = 24;
const _: () = assert!(2 * WIDTH * WIDTH >= 1024);
const LAYERS: usize = 8;
const MICRO_BATCHES: u32 = 8;

/// A layer as transformers have them: it reads a normalised copy of the stream and adds to it.
#[derive(Module, Debug)]
struct Layer {
    norm: LayerNorm,
    inner: Linear,
    outer: Linear,
}

impl Layer {
    fn forward(&self, stream: Tensor<3>, weights: &WeightGradients) -> Tensor<3> {
        let x = self.norm.forward(stream.clone());
        let x = activation::gelu(weights.linear(&self.inner, x));
        stream + weights.linear(&self.outer, x)
    }
}

/// Some of a model of tokens, or all of it.
#[derive(Module, Debug)]
struct Part {
    embedding: Option<Embedding>,
    layers: Vec<Layer>,
    head: Option<Linear>,
}

/// Tokens and those that follow.
type Batch = (Tensor<2, Int>, Tensor<1, Int>);

impl Part {
    /// The same values on every rank.
    fn whole(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let layer = |_| Layer {
            norm: LayerNormConfig::new(WIDTH).init(device),
            inner: linear(WIDTH, 2 * WIDTH),
            outer: linear(2 * WIDTH, WIDTH),
        };
        let whole = Self {
            embedding: Some(EmbeddingConfig::new(TOKENS, WIDTH).init(device)),
            layers: (0..LAYERS).map(layer).collect(),
            head: Some(linear(WIDTH, TOKENS)),
        };
        whole.map(&mut Waves(0))
    }

    /// Some layers; with the embedding in front of the first and the head behind the last.
    fn part(mut self, layers: Range<usize>) -> Self {
        self.layers.drain(layers.end..);
        self.layers.drain(..layers.start);
        Self {
            embedding: self.embedding.filter(|_| layers.start == 0),
            head: self.head.filter(|_| layers.end == LAYERS),
            layers: self.layers,
        }
    }

    fn forward(&self, stream: Tensor<3>, weights: &WeightGradients) -> Tensor<3> {
        let layers = self.layers.iter();
        layers.fold(stream, |stream, layer| layer.forward(stream, weights))
    }

    fn loss(
        &self,
        stream: Tensor<3>,
        next: Tensor<1, Int>,
        weights: &WeightGradients,
    ) -> Tensor<1> {
        let head = self.head.as_ref().expect("the last stage has the head");
        let scores = weights.linear(head, stream).flatten::<2>(0, 1);
        let cross_entropy = CrossEntropyLossConfig::new().init(&scores.device());
        cross_entropy.forward(scores, next)
    }

    fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let embedding = self.embedding.as_ref();
        embedding.expect("the first stage has it").forward(tokens)
    }

    /// What each rank does in a pipeline.
    fn stage(&self, pass: &mut Pass<'_, Batch>) -> Result<Output, PipelineError> {
        let (tokens, next) = pass.micro_batch().clone();
        let stream = if pass.is_first() { self.embed(tokens) } else { pass.input()? };
        let stream = self.forward(stream, pass.weights());
        Ok(if pass.is_last() {
            self.loss(stream, next, pass.weights()).into()
        } else {
            stream.into()
        })
    }
}

/// Values that depend on their place only.
struct Waves(usize);

impl ModuleMapper for Waves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let start = self.0;
            self.0 += tensor.shape().num_elements();
            let values = (start..self.0).map(|place| 0.3 * (place as f32 * 1.7).sin());
            let data = TensorData::new(values.collect::<Vec<f32>>(), tensor.shape());
            Tensor::from_data(data, &tensor.device()).require_grad()
        })
    }
}

/// The bits of all parameters, in the order of the layers.
fn bits(module: &impl Module) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().into_data().try_to_vec::<f32>().unwrap();
            self.0.extend(values.into_iter().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    module.visit(&mut bits);
    bits.0
}

/// The micro-batches of a step, of `samples` samples each.
fn batches(step: u32, samples: usize, device: &Device) -> Vec<Batch> {
    let tokens = |seed: usize, count: usize| -> Vec<i32> {
        let token = |place| (seed * 31 + place * place * 7 + place) % TOKENS;
        (0..count).map(|place| token(place) as i32).collect()
    };
    let batch = |micro_batch: u32| {
        let seed = (step * MICRO_BATCHES + micro_batch) as usize;
        let count = samples * 3;
        let input = TensorData::new(tokens(seed, count), [samples, 3]);
        let next = TensorData::new(tokens(seed + 5, count), [count]);
        (Tensor::from_data(input, device), Tensor::from_data(next, device))
    };
    (0..MICRO_BATCHES).map(batch).collect()
}

fn on_ranks<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    local(ranks, GroupOptions::default(), |group| body(world(group)))
}

fn world(group: ProcessGroup) -> World {
    let local =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, local, DeviceKind::Cpu).unwrap()
}

fn schedule(kind: Kind, ranks: u32) -> Schedule {
    let chunks = match kind {
        Kind::Interleaved | Kind::ZeroBubbleV => 2,
        _ => 1,
    };
    let shape = Shape {
        kind,
        ranks: WorldSize::new(ranks).unwrap(),
        chunks: NonZeroU32::new(chunks).unwrap(),
        micro_batches: NonZeroU32::new(MICRO_BATCHES).unwrap(),
    };
    Schedule::new(shape).unwrap()
}

/// This rank's stages of the model.
fn parts(schedule: &Schedule, world: &World) -> Vec<Part> {
    let device = world.device().autodiff();
    let runs = partition(&[1.0; LAYERS], schedule.stages() as usize).unwrap();
    let own = schedule.stages_on(world.rank()).into_iter();
    own.map(|stage| Part::whole(&device).part(runs[stage as usize].clone())).collect()
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}
