//! Shared code of the benchmarks of a training step: the model, and the timing.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use bonfire::collective::ReduceOp;
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, activation};
use clap::Args;

/// The work of a benchmarked step.
#[derive(Clone, Copy, Debug, Args)]
pub struct Sizes {
    /// Hidden layers, each with a weight and a bias
    #[arg(long, default_value_t = 25)]
    pub layers: usize,

    /// Width of every layer
    #[arg(long, default_value_t = 768)]
    pub width: usize,

    /// Samples per rank and step; with the default, backward takes longer than communication
    #[arg(long, default_value_t = 512)]
    pub batch: usize,

    /// Timed steps of each kind
    #[arg(long, default_value_t = 9)]
    pub steps: usize,
}

/// Rounds before the first that is timed: buckets are assigned again after the second step.
const WARM_UP_ROUNDS: usize = 2;

impl Sizes {
    /// Builds the network that all kinds of steps train.
    pub fn model(&self, device: &Device) -> Mlp {
        Mlp::new(self.layers, self.width, device)
    }

    /// Makes `batches` batches in one, of random numbers: `[batches * batch, width]`.
    pub fn input(&self, batches: usize, device: &Device) -> Tensor<2> {
        let shape = [batches * self.batch, self.width];
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    /// Returns true if a round is timed.
    pub fn is_timed(&self, round: usize) -> bool {
        round >= WARM_UP_ROUNDS
    }

    /// Returns all rounds, those before the first timed one included.
    pub fn rounds(&self) -> std::ops::Range<usize> {
        0..self.steps + WARM_UP_ROUNDS
    }

    /// Returns the first line of a report: sizes and ranks.
    pub fn head(&self, world: &World, model: &Mlp) -> String {
        format!(
            "{} parameters in {} tensors, {} ranks x batch {}, median of {} steps",
            model.num_params(),
            2 * self.layers,
            world.world_size(),
            self.batch,
            self.steps
        )
    }
}

/// A plain deep network: a chain, so that its gradients become final one after the other.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Makes square layers of `width` inputs, each with a weight and a bias.
    pub fn new(layers: usize, width: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self { layers: (0..layers).map(layer).collect() }
    }

    /// Returns the mean square of the output; `input` is `[batch, width]`.
    pub fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::relu(layer.forward(x));
        self.layers.iter().fold(input, forward).powi_scalar(2).mean()
    }
}

/// Returns the time of one step on the slowest rank; all ranks start together.
pub fn timed(world: &World, step: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    world.group().barrier()?;
    let started = Instant::now();
    step()?;
    let mut slowest = [started.elapsed().as_secs_f64()];
    world.group().all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(Duration::from_secs_f64(slowest[0]))
}

/// Returns the median; the greater of both for an even number.
pub fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("times and their ratios are numbers"));
    values[values.len() / 2]
}
