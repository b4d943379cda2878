//! Trains a model of eight layers as a pipeline: `pipeline_parallel --nproc 2`, or 4.

use std::num::NonZeroU32;

use bonfire::parallel::schedule::{Kind, Schedule, Shape, partition};
use bonfire::parallel::{Output, Pass, Pipeline, PipelineError};
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Distribution, Tensor, activation};

const LAYERS: usize = 8;
const MICRO_BATCHES: u32 = 8;

/// A stage: some of the layers.
#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    // ANCHOR: stages
    let schedule = Schedule::new(Shape {
        kind: Kind::ZeroBubbleV,
        ranks: world.world_size(),
        chunks: const { NonZeroU32::new(2).unwrap() }, // stages per rank
        micro_batches: const { NonZeroU32::new(MICRO_BATCHES).unwrap() },
    })?;
    // Ranges of layers by cost: parameters or seconds, or 1.0 if all are equal.
    let ranges = partition(&[1.0; LAYERS], schedule.stages() as usize)?;
    let stage = |number: u32| {
        let layer = |_| LinearConfig::new(16, 16).init(&device);
        let layers = ranges[number as usize].clone().map(layer).collect();
        Layers { layers }
    };
    let own = schedule.stages_on(world.rank()).into_iter();
    let mut pipeline = Pipeline::new(own.map(stage).collect(), schedule, &world)?;
    // ANCHOR_END: stages
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut first = f64::NAN;
    for step in 0..60 {
        // All ranks may draw; the first stage uses the inputs and the last the targets.
        let batch = |_| Tensor::<2>::random([8, 16], Distribution::Default, &device);
        let micro_batches: Vec<Tensor<2>> = (0..MICRO_BATCHES).map(batch).collect();
        // ANCHOR: step
        let done = pipeline.backward(&micro_batches, forward)?;
        pipeline.step(&mut optimizer, 0.01, done.gradients)?;
        // ANCHOR_END: step
        if step == 0 {
            first = done.loss.value()?;
        } else if step == 59 {
            let (rank, last) = (world.rank(), done.loss.value()?);
            println!("rank {rank}: loss {first:.3}, then loss {last:.6}");
        }
    }
    let plain = world.device();
    let inputs = [3, 8, 5].map(|rows| Tensor::random([rows, 16], Distribution::Default, &plain));
    // ANCHOR: evaluate
    let losses = pipeline.evaluate(&inputs, forward)?;
    let samples: Vec<usize> = inputs.iter().map(|input| input.dims()[0]).collect();
    let sum: f64 = losses.iter().zip(&samples).map(|(loss, &rows)| loss * rows as f64).sum();
    let mean = sum / samples.iter().sum::<usize>() as f64;
    // ANCHOR_END: evaluate
    println!("rank {}: validation loss {mean:.6}", world.rank());
    Ok(())
}

// ANCHOR: forward
/// The forward pass of any stage, on the output of the stage before it.
fn forward(stage: &Layers, pass: &mut Pass<'_, Tensor<2>>) -> Result<Output, PipelineError> {
    let mut x = if pass.is_first() { pass.micro_batch().clone() } else { pass.input()? };
    for layer in &stage.layers {
        // As layer.forward(x), but the gradient of the weight may come later.
        x = x.clone() + activation::tanh(pass.weights().linear(layer, x));
    }
    Ok(if pass.is_last() { (x - 0.5).powi_scalar(2).mean().into() } else { x.into() })
}
// ANCHOR_END: forward
