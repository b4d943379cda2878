//! Burn's learner on ranks that are threads.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bonfire_collective::{GroupOptions, ProcessGroup, Rank, WorldSize};
use bonfire_data::{DatasetLoader, Loader, Order, Remainder};
use bonfire_testkit::{assert_each_says, local};
use bonfire_train::{
    Ddp, DdpConfig, DeviceKind, GradientCompression, LocalRank, Loss, Precision, World,
};
use burn::Tensor;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, TensorData, activation};
use burn_train::metric::store::{Aggregate, EventStoreClient, Split};
use burn_train::metric::{LossMetric, Metric};
use burn_train::{
    EarlyStoppingStrategy, Learner, LearningResult, RegressionOutput, SupervisedTraining,
    TrainOutput,
};
use burn_train::{InferenceStep, TrainStep};

use super::*;

mod compression_checkpoints;
mod dealing;
mod endings;
mod equality;
mod metrics;
mod timings;

/// Training samples: not divisible by any batch or world here.
const SAMPLES: usize = 23;
const VALID_SAMPLES: usize = 11;
const BATCH: usize = 4;
const RATE: f64 = 0.02;

/// Two layers.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    /// The same values for the same seed.
    fn new(seed: usize, device: &Device) -> Self {
        struct Fill(usize);
        impl ModuleMapper for Fill {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (id, tensor, mapper) = param.consume();
                let shape = tensor.dims();
                let values: Vec<f32> = (0..shape.iter().product())
                    .map(|index: usize| ((index * 7 + self.0) as f32).sin() / 3.0)
                    .collect();
                self.0 += 13;
                let device = tensor.device();
                let filled = Tensor::from_data(TensorData::new(values, shape), &device);
                let trainable = tensor.is_require_grad();
                let param = Param::from_mapped_value(id, filled, mapper);
                if trainable { param.set_require_grad(true) } else { param }
            }
        }
        let net = Self {
            first: LinearConfig::new(2, 6).init(device),
            second: LinearConfig::new(6, 1).init(device),
        };
        net.map(&mut Fill(seed))
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(activation::tanh(self.first.forward(x)))
    }

    fn regression(&self, (x, y): Points) -> RegressionOutput {
        let output = self.forward(x);
        let loss = (output.clone() - y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, y)
    }

    /// The bits of all parameters.
    fn bits(&self) -> Vec<u32> {
        let layers = [&self.first, &self.second];
        let bits = layers.map(|layer| {
            let bias = layer.bias.as_ref().unwrap().val().into_data();
            let data = [layer.weight.val().into_data(), bias];
            data.map(|data| data.try_to_vec::<f32>().unwrap()).concat()
        });
        bits.concat().into_iter().map(f32::to_bits).collect()
    }
}

/// Inputs and targets.
type Points = (Tensor<2>, Tensor<2>);

impl TrainStep for Net {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let item = self.regression(points);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> RegressionOutput {
        self.regression(points)
    }
}

/// The numbers below a length; one of them may be unreadable.
#[derive(Clone, Debug)]
struct Numbers {
    len: usize,
    broken: Option<usize>,
}

impl Dataset<usize> for Numbers {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if self.broken == Some(index) {
            let error = std::io::Error::other(format!("sample {index} is torn"));
            return Err(DatasetError::new(error));
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Makes points of numbers; may note which numbers it was given.
#[derive(Clone, Debug, Default)]
struct ToPoints {
    seen: Arc<Mutex<Vec<usize>>>,
    /// What it adds to all targets.
    added: Option<f32>,
}

impl Batcher<usize, Points> for ToPoints {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Points {
        self.seen.lock().unwrap().extend(&items);
        let (x, y) = points(&items, device);
        match self.added {
            Some(added) => (x, y + added),
            None => (x, y),
        }
    }
}

fn points(items: &[usize], device: &Device) -> Points {
    let input = |item: &usize| [(*item as f32 * 0.7).sin(), (*item as f32 * 1.3).cos()];
    let inputs: Vec<f32> = items.iter().flat_map(input).collect();
    let targets: Vec<f32> = inputs.chunks_exact(2).map(|x| x[0] - x[1] * x[0]).collect();
    (
        Tensor::from_data(TensorData::new(inputs, [items.len(), 2]), device),
        Tensor::from_data(TensorData::new(targets, [items.len(), 1]), device),
    )
}

fn whole(len: usize) -> Numbers {
    Numbers { len, broken: None }
}

/// Runs `body` on `ranks` ranks, each a thread.
fn on_ranks<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    local(ranks, GroupOptions::default(), |group| body(world(group)))
}

fn world(group: ProcessGroup) -> World {
    let local =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, local, DeviceKind::Cpu).unwrap()
}

const ORDER: Order = Order::Shuffled { seed: 5 };

fn train_loader(world: &World, remainder: Remainder) -> Arc<dyn DataLoader<Points>> {
    dealt(world, whole(SAMPLES), ORDER, remainder)
}

fn valid_loader(world: &World) -> Arc<dyn DataLoader<Points>> {
    let (order, remainder) = (Order::Sequential, Remainder::Exact);
    dealt(world, whole(VALID_SAMPLES), order, remainder)
}

fn dealt(
    world: &World,
    numbers: Numbers,
    order: Order,
    remainder: Remainder,
) -> Arc<dyn DataLoader<Points>> {
    let loader = DatasetLoader::new(world, numbers, ToPoints::default(), BATCH);
    Arc::new(loader.with_order(order).with_remainder(remainder))
}

/// A training that only waits for its learner.
fn training(world: &World, folder: &Path, epochs: usize) -> SupervisedTraining<Net> {
    let train = train_loader(world, Remainder::Exact);
    training_of(folder, epochs, train, valid_loader(world))
}

fn training_of(
    folder: &Path,
    epochs: usize,
    train: Arc<dyn DataLoader<Points>>,
    valid: Arc<dyn DataLoader<Points>>,
) -> SupervisedTraining<Net> {
    SupervisedTraining::new(folder, train, valid)
        .metrics((LossMetric::new(),))
        .num_epochs(epochs)
        .with_application_logger(None)
}

/// A learner whose model differs from rank to rank, as one with random values would.
fn learner(world: &World) -> Learner<Net> {
    let device = world.device().autodiff();
    let optimizer: ModuleOptimizer = AdamWConfig::new().init();
    Learner::new(Net::new(world.rank().index(), &device), optimizer, RATE)
}

#[track_caller]
fn finished(result: LearningResult<Net>) -> Net {
    if let Some(error) = result.error {
        panic!("{error}");
    }
    result.model
}
