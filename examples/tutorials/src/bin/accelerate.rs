//! accelerate's form: one call to prepare, and a loop without ranks.

use bonfire::config::{Config, ConfigArgs};
use bonfire::prelude::*;
use bonfire::trainer::Data;
use clap::Parser;
use tutorials::{ToyModel, batch};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

fn main() -> bonfire::Result<()> {
    let args = Args::parse(); // accelerate --nproc 2 batch.micro=4 epochs=20
    let config = args.config.load()?;
    bonfire::launch_with(&args.launch, |world| train(&world, &config))
}

fn train(world: &World, config: &Config) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let samples = |len, device| Data::new(len, move |indices| batch(indices, &device));
    let training = samples(64, device);
    let mut trainer = prepare(world, config, (ToyModel::new(&world.device()), training))?;
    while let Some(batch) = trainer.next_batch()? {
        trainer.step(batch, |model: &ToyModel, batch| model.loss(batch))?;
    }
    // Each of the eleven counts once, on any number of ranks.
    let validation = samples(11, world.device());
    let [loss] =
        trainer.evaluate(&validation, |model, batch| [model.loss(batch).into_scalar::<f64>()])?;
    trainer.note(&format!("validation loss {loss:.4}"));
    trainer.finish()?;
    Ok(())
}
