//! What the benchmarks of a training step share: the model, and how a step is timed.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use bonfire::prelude::*;
use bonfire::{ReduceOp, TrainError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation};
use clap::Args;

/// What a benchmark of a step computes.
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

/// A plain deep network: a chain, so that its gradients become final one after the other.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Square layers of `width` inputs, each with a weight and a bias.
    pub fn new(layers: usize, width: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..layers).map(layer).collect(),
        }
    }

    /// Mean square of the output; `input` is `[batch, width]`.
    pub fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::relu(layer.forward(x));
        self.layers
            .iter()
            .fold(input, forward)
            .powi_scalar(2)
            .mean()
    }
}

/// The time of one step on the slowest rank; all ranks start together.
pub fn timed(
    world: &World,
    step: impl FnOnce() -> Result<(), TrainError>,
) -> Result<Duration, TrainError> {
    world.group().barrier()?;
    let started = Instant::now();
    step()?;
    let mut slowest = [started.elapsed().as_secs_f64()];
    world.group().all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(Duration::from_secs_f64(slowest[0]))
}

/// The value in the middle; of an even number the greater one.
pub fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| {
        a.partial_cmp(b)
            .expect("times and their ratios are numbers")
    });
    values[values.len() / 2]
}
