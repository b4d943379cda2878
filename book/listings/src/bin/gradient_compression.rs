//! A training that computes in 16 bits and sends less than its gradients. Its first argument is a
//! folder for checkpoints.

use bonfire::checkpoint::Milestone;
use bonfire::collective::Rank;
use bonfire::compression::GradientCompression;
use bonfire::compression::{CompressionState, PowerSgdConfig};
use bonfire::ddp::{Precision, StepOptions};
use bonfire::optim::LossScaler;
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use serde::{Deserialize, Serialize};

/// Learns to turn the first sixteen numbers of its input around.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(16, 64).init(device),
            second: LinearConfig::new(64, 16).init(device),
        }
    }

    // ANCHOR: loss
    /// The mean squared error over a batch, `[batch, 16]` in f32.
    fn loss(&self, precision: Precision, x: Tensor<2>) -> Tensor<1> {
        let y = x.clone().flip([1]);
        // In 16 bits from here on ...
        let hidden = self.first.forward(precision.cast(x)).tanh();
        let out = self.second.forward(hidden);
        // ... to here.
        (out.cast(FloatDType::F32) - y).powi_scalar(2).mean()
    }
    // ANCHOR_END: loss
}

/// The same numbers for the same step and rank.
fn batch(step: u64, rank: Rank, device: &Device) -> Tensor<2> {
    let start = (step * 1000 + u64::from(rank.get()) * 97) as i64;
    let numbers = Tensor::<1, Int>::arange(start..start + 32 * 16, device).float();
    (numbers * 1.7).sin().reshape([32, 16])
}

// ANCHOR: state
/// What a checkpoint keeps beside model and optimizer.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    scaler: LossScaler,
    compression: CompressionState,
}
// ANCHOR_END: state

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

// ANCHOR: train
fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let compression =
        GradientCompression::PowerSgd(PowerSgdConfig::default().with_rank(2).with_start_step(20));
    let config = DdpConfig::default().with_compression(compression).with_precision(Precision::F16);
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "runs/lean".into());
    let checkpoints = Checkpoints::open(&world, folder, Keep::default())?;
    let mut ddp = Ddp::with_config(Net::new(&device), &world, config)?;
    let precision = ddp.precision();
    let mut optimizer = AdamWConfig::new().init();
    let (first, mut state) = match checkpoints.resume::<_, State>(&mut ddp, &mut optimizer)? {
        Some(resumed) => (resumed.milestone.step, resumed.state),
        None => (0, State::default()),
    };
    ddp.restore_compression(&state.compression)?;

    for step in first..400 {
        let x = batch(step, world.rank(), &device);
        // ANCHOR: scale
        let loss = |model: &Net| state.scaler.scale(model.loss(precision, x));
        let done = ddp.backward(loss)?;
        // If a number overflowed on any rank, all of them skip the step.
        let options = StepOptions::default().with_scaler(&mut state.scaler);
        ddp.step_with(&mut optimizer, 0.01, done.gradients, options)?;
        // ANCHOR_END: scale
        if (step + 1) % 100 == 0 {
            state.compression = ddp.compression_state()?;
            let milestone = Milestone { step: step + 1, metric: None };
            checkpoints.save(milestone, &mut ddp, &optimizer, &state)?;
            let loss = done.loss.over_ranks(&world)?;
            if world.is_main() {
                println!("step {} loss {loss:.6}", step + 1);
            }
        }
    }
    Ok(())
}
// ANCHOR_END: train
