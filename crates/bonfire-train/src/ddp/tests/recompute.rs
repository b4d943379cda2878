//! Segments whose activations are computed again, inside of passes over several ranks.

use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::FloatDType;

use super::*;
use crate::reducer::trace::Event;
use crate::{BatchNorm, BatchNormConfig, Precision, convert_sync_batch_norm, recompute};

mod sharded;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Blocks {
    Plain,
    Segments,
}

/// Residual blocks, then transformer blocks.
#[derive(Module, Debug)]
struct Deep {
    residual: Vec<Residual>,
    encoder: Vec<TransformerEncoderLayer>,
}

#[derive(Module, Debug)]
struct Residual {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Residual {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inner = activation::gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(inner)
    }
}

const HEADS: usize = 2;

impl Deep {
    fn new(device: &Device) -> Self {
        let residual = || Residual {
            norm: LayerNormConfig::new(INPUTS).init(device),
            up: LinearConfig::new(INPUTS, HIDDEN).init(device),
            down: LinearConfig::new(HIDDEN, INPUTS).init(device),
        };
        let config = TransformerEncoderConfig::new(INPUTS, HIDDEN, HEADS, 1).with_dropout(0.0);
        let encoder = || TransformerEncoderLayer::new(&config, device);
        let model = Self {
            residual: vec![residual(), residual(), residual()],
            encoder: vec![encoder(), encoder(), encoder()],
        };
        seeded(model, 3)
    }

    /// One block of each kind is not trained.
    fn frozen(mut self) -> Self {
        self.residual[1] = self.residual[1].clone().freeze();
        self.encoder[1] = self.encoder[1].clone().freeze();
        self
    }

    fn forward(&self, x: Tensor<2>, blocks: Blocks) -> Tensor<2> {
        let x = self.residual.iter().fold(x, |x, block| match blocks {
            Blocks::Plain => block.forward(x),
            Blocks::Segments => recompute(block, x, Residual::forward),
        });
        let forward = |layer: &TransformerEncoderLayer, x| layer.forward(x, None, None);
        let x = self.encoder.iter().fold(x.unsqueeze(), |x, layer| match blocks {
            Blocks::Plain => forward(layer, x),
            Blocks::Segments => recompute(layer, x, forward),
        });
        x.squeeze_dim(0)
    }
}

/// The parameters after some steps of two micro-batches each, and all losses.
fn trained(ranks: u32, config: DdpConfig, blocks: Blocks) -> (Bits, Vec<f64>) {
    let precision = config.precision;
    let results = on_ranks(ranks, |world| {
        let device = world.device();
        let mut model = Deep::new(&device);
        // What is frozen stays in 32 bits, and could not be mixed with 16.
        if precision == Precision::F32 {
            model = model.frozen();
        }
        let mut ddp = Ddp::with_config(model, &world, config.clone()).unwrap();
        let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let mut losses = Vec::new();
        for step in 0..5 {
            let loss = |model: &Deep, micro_batch: usize| {
                let (x, _) = samples(&share(&world, 2 * step + micro_batch, 3), &device);
                let output = model.forward(precision.cast(x), blocks);
                output.cast(FloatDType::F32).square().mean()
            };
            let first = ddp.no_sync(|model| loss(model, 0)).unwrap();
            let second = ddp.backward(|model| loss(model, 1)).unwrap();
            losses.extend([first.loss, second.loss].map(|loss| loss.value().unwrap()));
            ddp.step(&mut optimizer, 1e-2, second.gradients).unwrap();
        }
        (bits(ddp.module()), losses)
    });
    assert_same(&results.iter().map(|(bits, _)| bits).collect::<Vec<_>>());
    results.into_iter().next().unwrap()
}

#[test]
fn segments_train_the_bits_of_plain_blocks() {
    for ranks in [1, 2, 3] {
        for config in [small_buckets(), DdpConfig::default()] {
            let plain = trained(ranks, config.clone(), Blocks::Plain);
            assert!(trained(ranks, config, Blocks::Segments) == plain, "{ranks} ranks");
        }
    }
}

#[test]
fn so_they_do_in_16_bits() {
    for precision in precision::PRECISIONS {
        let config = DdpConfig { precision, ..small_buckets() };
        let plain = trained(2, config.clone(), Blocks::Plain);
        assert!(trained(2, config, Blocks::Segments) == plain, "{precision:?}");
        let single = trained(2, small_buckets(), Blocks::Plain);
        assert!(plain != single, "{precision:?} is another");
    }
}

#[test]
fn gradients_travel_before_the_first_segment_has_run_again() {
    on_ranks(2, |world| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Deep::new(&device), &world, small_buckets()).unwrap();
        let trace = ddp.trace();
        let first = |name: &str| {
            let table = &ddp.table;
            (0..table.len()).find(|&index| table.get(index).name.starts_with(name))
        };
        let first = [first("residual.0").unwrap(), first("encoder.2").unwrap()];
        // From the second step on the order of the parameters is known.
        for _ in 0..3 {
            trace.clear();
            let marks = trace.clone();
            let step = ddp.backward(|model| {
                let (x, _) = samples(&[1, 2], &device);
                let first = recompute(&model.residual[0], x, move |block, x| {
                    marks.mark("first segment");
                    block.forward(x)
                });
                let rest =
                    Deep { residual: model.residual[1..].to_vec(), encoder: model.encoder.clone() };
                rest.forward(first, Blocks::Segments).square().mean()
            });
            step.unwrap();
        }
        let events = trace.events();
        let last_mark = events.iter().rposition(|event| *event == Event::Mark("first segment"));
        let taken = first.map(|parameter| {
            let taken = Event::Taken { parameter };
            events.iter().position(|event| *event == taken)
        });
        let [early, late] = [taken[1], taken[0]];
        assert!(early.is_some() && early < last_mark && last_mark < late, "{events:?}");
    });
}

/// A batch norm between two layers.
#[derive(Module, Debug)]
struct Normed {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Normed {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.norm.forward(self.first.forward(x));
        self.norm.forward(self.second.forward(activation::tanh(x)))
    }
}

/// The parameters and statistics after some steps. Batches of the ranks of `ignored` count nothing in the
/// loss, though the norms see them.
fn normed(ranks: u32, blocks: Blocks, ignored: &[u32]) -> Vec<Bits> {
    on_ranks(ranks, |world| {
        let device = world.device();
        let model = Normed {
            first: LinearConfig::new(INPUTS, HIDDEN).init(&device),
            norm: BatchNormConfig::new(HIDDEN).init(&device),
            second: LinearConfig::new(HIDDEN, HIDDEN).init(&device),
        };
        let model = convert_sync_batch_norm(seeded(model, 4), &world).unwrap();
        let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
        let samples_counted = if ignored.contains(&world.rank().get()) { 0 } else { 3 };
        for step in 0..4 {
            descend(&mut ddp, 0.1, |model| {
                let (x, _) = samples(&share(&world, step, 3), &device);
                let output = match blocks {
                    Blocks::Plain => model.forward(x),
                    Blocks::Segments => recompute(model, x, Normed::forward),
                };
                Loss::mean_over(output.powi_scalar(3).mean(), samples_counted)
            });
        }
        bits(ddp.module())
    })
}

#[test]
fn a_synchronised_batch_norm_sees_a_batch_once() {
    for (ranks, ignored) in [(1, [].as_slice()), (2, &[]), (3, &[]), (3, &[1])] {
        let plain = normed(ranks, Blocks::Plain, ignored);
        assert!(normed(ranks, Blocks::Segments, ignored) == plain, "{ranks} ranks");
    }
}

/// Three layers, of which the output needs one.
#[derive(Module, Debug)]
struct Choice {
    needed: Linear,
    looked_at: Linear,
    left_alone: Linear,
}

#[test]
fn a_parameter_that_a_segment_leaves_alone_has_no_gradient_and_one_that_it_looks_at_has_zeros() {
    let gradients = on_ranks(2, |world| {
        let device = world.device();
        let layer = || LinearConfig::new(INPUTS, OUTPUTS).with_bias(false).init(&device);
        let model = Choice { needed: layer(), looked_at: layer(), left_alone: layer() };
        let mut ddp = Ddp::with_config(seeded(model, 6), &world, small_buckets()).unwrap();
        let step = ddp.backward(|model| {
            let (x, _) = samples(&share(&world, 0, 2), &device);
            let output = recompute(model, x, |model, x| {
                let other = model.looked_at.forward(x.clone()).detach();
                model.needed.forward(x) + other
            });
            output.square().mean()
        });
        gradient_values(ddp.module(), &step.unwrap().gradients)
    });
    let [needed, looked_at, left_alone] = &one_of(gradients)[..] else {
        panic!("three parameters");
    };
    assert!(needed.iter().flatten().any(|value| *value != 0.0));
    assert_eq!(looked_at.as_deref(), Some([0.0; INPUTS * OUTPUTS].as_slice()));
    assert_eq!(*left_alone, None);
}
