//! Passes in 16 bits over parameters in 32.

use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig};
use burn::tensor::{DType as TensorDType, FloatDType, Int};

use super::*;
use crate::{LossScaler, Precision};
use bonfire_optim::ScalerConfig;

fn mixed(precision: Precision) -> DdpConfig {
    DdpConfig { precision, ..small_buckets() }
}

/// The mean squared error, computed in f32 from what the pass computes.
pub(super) fn loss_in(precision: Precision, model: &Mlp, indices: &[usize]) -> Tensor<1> {
    let (x, y) = samples(indices, &model.first.weight.device());
    let out = model.forward(precision.cast(x));
    if let Some(dtype) = precision.lower() {
        assert_eq!(out.dtype(), TensorDType::from(dtype), "the pass is in 16 bits");
    }
    (out.cast(FloatDType::F32) - y).powi_scalar(2).mean()
}

/// Trains with a scaled loss; `parts` batches of `batch` samples on each rank make a step. Returns
/// the model, and the first and the last loss over all samples.
fn train_mixed(
    world: &World,
    averaging: impl Into<Averaging>,
    (steps, parts, batch): (usize, usize, usize),
    scaler: &mut LossScaler,
) -> (Bits, f64, f64) {
    let mut ddp = Averager::new(Mlp::new(1, &world.device()), world, averaging);
    let precision = ddp.precision();
    let whole: Vec<usize> = (0..world.world_size().len() * parts * batch).collect();
    let validated = |ddp: &mut Ddp<Mlp>| -> f64 {
        loss_in(precision, &ddp.lowered().unwrap(), &whole).into_scalar()
    };
    let before = validated(&mut ddp);
    for _ in 0..steps {
        let mut start = world.rank().index() * parts * batch;
        let mut loss = |model: &Mlp| {
            let indices: Vec<usize> = (start..start + batch).collect();
            start += batch;
            scaler.scale(loss_in(precision, model, &indices))
        };
        for _ in 1..parts {
            ddp.no_sync(&mut loss).unwrap();
        }
        let gradients = ddp.backward(&mut loss).unwrap().gradients;
        if let Some(gradients) = scaler.unscale(gradients).unwrap() {
            ddp.step(&mut sgd(), 0.1, gradients).unwrap();
        }
    }
    let after = validated(&mut ddp);
    (bits(ddp.module()), before, after)
}

pub(super) const PRECISIONS: [Precision; 2] = [Precision::Bf16, Precision::F16];

/// One rank with two batches adds what two ranks with one batch each add.
#[test]
fn two_ranks_train_the_bits_of_one() {
    for precision in PRECISIONS {
        let with = |ranks: u32, parts: usize| {
            on_ranks(ranks, |world| {
                let mut scaler = LossScaler::default();
                let trained = train_mixed(&world, mixed(precision), (20, parts, 4), &mut scaler);
                (trained, scaler)
            })
        };
        let two = with(2, 1);
        assert_same(&two);
        assert_eq!(two[..1], with(1, 2)[..], "{precision:?}");
    }
}

/// With unit roundoff u of the narrow type, parameters, activations and gradients of three layers are
/// each off by a few u of themselves, so the loss is, too.
#[test]
fn passes_in_16_bits_learn_what_passes_in_32_learn() {
    let learnt = |precision| {
        let losses = on_ranks(2, |world| {
            let mut scaler = LossScaler::default();
            let (_, before, after) =
                train_mixed(&world, mixed(precision), (200, 1, 8), &mut scaler);
            assert_eq!(scaler.skipped(), 0);
            (before, after)
        });
        one_of(losses)
    };
    let (before, after) = learnt(Precision::F32);
    assert!(after < before / 2.0, "{before} to {after}");
    for (precision, bits) in [(Precision::Bf16, 8), (Precision::F16, 11)] {
        let unit = f64::powi(2.0, -bits);
        let (found_before, found) = learnt(precision);
        assert!((found_before - before).abs() < 16.0 * unit * before);
        let apart = (found - after).abs();
        assert!(apart < 16.0 * unit * before, "{precision:?}: {found}, not {after}");
        assert_ne!(found, after, "{precision:?} has an effect");
    }
}

#[test]
fn parameters_and_gradients_stay_in_32_bits() {
    on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, mixed(Precision::Bf16)).unwrap();
        for step in 0..3 {
            let indices = share(&world, step, 2);
            let step = ddp.backward(|model| loss_in(Precision::Bf16, model, &indices)).unwrap();
            let weight = &ddp.module().first.weight;
            let gradient: Tensor<2> = step.gradients.get(weight).unwrap();
            assert_eq!(weight.val().dtype(), TensorDType::F32);
            assert_eq!(gradient.dtype(), TensorDType::F32);
        }
        assert_eq!(ddp.lowered().unwrap().first.weight.val().dtype(), TensorDType::BF16);
        assert_eq!(ddp.module().first.weight.val().dtype(), TensorDType::F32);
        assert_eq!(ddp.precision(), Precision::Bf16);
    });
}

/// Where the bits of buckets and of single parameters agree, the order of the gradients is right, too.
#[test]
fn gradients_are_sent_early_and_have_the_bits_of_single_parameters() {
    for precision in PRECISIONS {
        let with = |averaging: Averaging| {
            on_ranks(3, |world| {
                let mut scaler = LossScaler::default();
                train_mixed(&world, averaging.clone(), (4, 1, 3), &mut scaler).0
            })
        };
        let config = DdpConfig::default().with_precision(precision);
        assert_eq!(with(mixed(precision).into()), with(Averaging::per_parameter(config)));
    }
}

/// In f16, and only there, gradients of one rank's sample leave the range of the type.
#[test]
fn an_overflow_of_one_rank_in_16_bits_skips_the_step_on_all() {
    let config = ScalerConfig::default().with_hysteresis(1);
    let results = on_ranks(3, |world| {
        let precision = Precision::F16;
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, mixed(precision)).unwrap();
        let mut scaler = LossScaler::new(config);
        let mut moved = Vec::new();
        for step in 0..4 {
            let indices = share(&world, step, 2);
            // The gradient of the output, times the scale: above 65504 for one rank.
            let factor = if (world.rank().get(), step) == (2, 1) { 64.0 } else { 1.0 };
            let loss = |model: &Mlp| scaler.scale(loss_in(precision, model, &indices) * factor);
            let gradients = ddp.backward(loss).unwrap().gradients;
            let before = bits(ddp.module());
            if let Some(gradients) = scaler.unscale(gradients).unwrap() {
                ddp.step(&mut sgd(), 0.1, gradients).unwrap();
            }
            moved.push(bits(ddp.module()) != before);
        }
        (moved, bits(ddp.module()), scaler)
    });
    let (moved, _, scaler) = one_of(results);
    assert_eq!(moved, [true, false, true, true]);
    assert_eq!((scaler.skipped(), scaler.scale_factor()), (1, 32768.0));
}

/// What transformers are made of.
#[derive(Module, Debug)]
struct Tokens {
    embedding: Embedding,
    norm: LayerNorm,
    query: Linear,
    dropout: Dropout,
    head: Linear,
}

impl Tokens {
    fn new(device: &Device) -> Self {
        let model = Self {
            embedding: EmbeddingConfig::new(OUTPUTS, INPUTS).init(device),
            norm: LayerNormConfig::new(INPUTS).init(device),
            query: LinearConfig::new(INPUTS, INPUTS).init(device),
            dropout: DropoutConfig::new(0.0).init(),
            head: LinearConfig::new(INPUTS, OUTPUTS).init(device),
        };
        seeded(model, 4)
    }

    /// The probability of the next token, as a loss.
    fn loss(&self, precision: Precision, tokens: &[i32], device: &Device) -> Tensor<1> {
        let tokens = Tensor::<1, Int>::from_ints(tokens, device);
        let x = self.embedding.forward(tokens.clone().unsqueeze::<2>());
        let x = self.norm.forward(x);
        let query = self.query.forward(x.clone());
        let scores = query.matmul(x.clone().transpose()) / (INPUTS as f32).sqrt();
        let x = activation::softmax(scores, 2).matmul(x.clone()) + x;
        let x = self.head.forward(self.dropout.forward(activation::gelu(x)));
        if let Some(dtype) = precision.lower() {
            assert_eq!(x.dtype(), TensorDType::from(dtype));
        }
        let logits: Tensor<2> = x.cast(FloatDType::F32).squeeze_dim(0);
        let next = tokens.add_scalar(1).remainder_scalar(OUTPUTS as i32);
        let picked = activation::log_softmax(logits, 1).gather(1, next.unsqueeze_dim(1));
        -picked.mean()
    }
}

#[test]
fn attention_norms_and_embeddings_learn_in_16_bits() {
    for precision in PRECISIONS {
        let losses = on_ranks(2, |world| {
            let device = world.device();
            let mut ddp = Ddp::with_config(Tokens::new(&device), &world, mixed(precision)).unwrap();
            let mut optimizer = AdamWConfig::new().init();
            let tokens =
                [0, 1, 2, 3, 0, 2, 1, 3].map(|token| (token + world.rank().get() as i32) % 4);
            let mut losses = Vec::new();
            for _ in 0..60 {
                let step = ddp.backward(|model| model.loss(precision, &tokens, &device));
                let step = step.unwrap();
                losses.push(step.loss.over_ranks(&world).unwrap());
                ddp.step(&mut optimizer, 0.02, step.gradients).unwrap();
            }
            (losses, bits(ddp.module()))
        });
        let (losses, _) = one_of(losses);
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        assert!(last < first / 2.0, "{precision:?}: {first} to {last}");
    }
}

/// A layer and its normalisation.
#[derive(Module, Debug)]
struct Normed {
    layer: Linear,
    norm: burn::nn::BatchNorm,
}

/// Its running state is kept in f32, so all of it is.
#[test]
fn batch_normalisation_stays_in_f32() {
    let states = on_ranks(2, |world| {
        let device = world.device();
        let model = Normed {
            layer: LinearConfig::new(INPUTS, OUTPUTS).init(&device),
            norm: burn::nn::BatchNormConfig::new(OUTPUTS).init(&device),
        };
        let precision = Precision::Bf16;
        let mut ddp = Ddp::with_config(model, &world, mixed(precision)).unwrap();
        let start = ddp.module().norm.running_mean.value().into_data();
        let (x, y) = samples(&[0, 1, 2, 3], &device);
        ddp.backward(|model| {
            let out = model.layer.forward(precision.cast(x.clone()));
            assert_eq!(out.dtype(), TensorDType::BF16);
            let out = precision.cast(model.norm.forward(out.cast(FloatDType::F32)));
            assert_eq!(out.dtype(), TensorDType::BF16);
            (out.cast(FloatDType::F32) - y).powi_scalar(2).mean()
        })
        .unwrap();
        let lowered = ddp.lowered().unwrap();
        assert_eq!(lowered.layer.weight.val().dtype(), TensorDType::BF16);
        assert_eq!(lowered.norm.gamma.val().dtype(), TensorDType::F32);
        let running = ddp.module().norm.running_mean.value_sync().into_data();
        assert_ne!(running, start, "the pass updates the state of the model");
        running.dtype()
    });
    assert_eq!(states, [TensorDType::F32; 2]);
}

/// Burn converts nothing by itself: an input in f32 is refused, not computed wrongly.
#[test]
fn an_input_in_32_bits_is_a_panic() {
    let outcome = std::panic::catch_unwind(|| {
        on_ranks(1, |world| {
            let config = mixed(Precision::Bf16);
            let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
            ddp.backward(|model| model.loss(&[0])).map(drop)
        })
    });
    assert!(outcome.is_err());
}
