//! A training that a configuration describes: the listing on `prepare`.

use bonfire::config::{Config, ConfigArgs};
use bonfire::prelude::*;
use bonfire::trainer::Data;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use clap::Parser;

// ANCHOR: args
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    config: ConfigArgs,
}
// ANCHOR_END: args

// ANCHOR: prepared
fn main() -> bonfire::Result<()> {
    let args = Args::parse(); // ./train --nproc 2 --config train.toml optimizer.lr=0.1
    let config = args.config.load()?;
    bonfire::launch_with(&args.launch, |world| train(&world, &config))
}

fn train(world: &World, config: &Config) -> bonfire::Result<()> {
    world.device().seed(config.seed); // for the initial parameters
    let device = world.device().autodiff();
    let model = LinearConfig::new(1, 1).init(&device);
    let training = Data::new(256, move |indices| points(indices, &device)); // 256 samples
    let device = world.device();
    let validation = Data::new(11, move |indices| points(indices, &device));

    let mut trainer = prepare(world, config, (model, training))?;
    while let Some(batch) = trainer.next_batch()? {
        trainer.step(batch, loss)?;
    }
    let [error] =
        trainer.evaluate(&validation, |model, batch| [loss(model, batch).into_scalar::<f64>()])?;
    trainer.value("validation_loss", error)?;
    let report = trainer.finish()?;
    // ANCHOR_END: prepared
    if world.is_main() {
        println!("error {error:.6} after {} steps", report.steps);
    }
    Ok(())
}

fn loss(model: &Linear, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
    (model.forward(x) - y).powi_scalar(2).mean()
}

/// Points of the line y = 3 x.
fn points(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let x: Vec<f32> = indices.iter().map(|&index| index as f32 / 256.0).collect();
    let x = Tensor::<1>::from_floats(x.as_slice(), device).reshape([indices.len(), 1]);
    (x.clone(), x * 3.0)
}
