//! DeepSpeed's engine form, with the tutorial's JSON as it is:
//! `deepspeed --nproc 2 --deepspeed --deepspeed_config ds_config.json`.

use bonfire::config::ConfigArgs;
use bonfire::prelude::*;
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
    let args = Args::parse();
    let config = args.config.load()?;
    bonfire::launch_with(&args.launch, |world| {
        let device = world.device().autodiff();
        let data = Data::new(64, move |indices| batch(indices, &device));
        let mut engine = prepare(&world, &config, (ToyModel::new(&world.device()), data))?;
        while let Some(batch) = engine.next_batch()? {
            // engine(batch), engine.backward(loss), engine.step()
            let done = engine.step(batch, |model: &ToyModel, batch| model.loss(batch))?;
            if let Some(step) = done.step.filter(|step| step.is_multiple_of(32)) {
                let loss = done.loss.over_ranks(&world)?;
                engine.note(&format!("step {step}: loss {loss:.4}"));
            }
        }
        engine.finish().map(drop)
    })?;
    Ok(())
}
