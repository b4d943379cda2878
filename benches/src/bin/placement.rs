//! Measures the cost of placements: a complete step, optimizer included, in each of them, interleaved in one run.
//!
//! `cargo run --release -p bonfire-benches --bin placement -- --nproc 2`

#![forbid(unsafe_code)]

use std::time::Duration;

use bonfire::LaunchArgs;
use bonfire::optim::AdamWConfig;
use bonfire::prelude::*;
use bonfire_benches::{Mlp, Sizes, median, timed};
use burn::optim::ModuleOptimizer;
use clap::Parser;

/// Time a training step in each placement.
#[derive(Clone, Debug, Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    #[command(flatten)]
    sizes: Sizes,
}

fn main() -> bonfire::Result<()> {
    let args: Args = bonfire::launcher::parse_args();
    bonfire::launch_with(&args.launch.clone(), |world| measure(&world, args.sizes))
}

struct Training {
    placement: Placement,
    ddp: Ddp<Mlp>,
    optimizer: ModuleOptimizer,
    times: Vec<Duration>,
}

fn measure(world: &World, sizes: Sizes) -> anyhow::Result<()> {
    let device = world.device();
    let model = sizes.model(&device);
    let input = sizes.input(1, &device.autodiff());
    let placements =
        [Placement::replicated(), Placement::zero1(), Placement::zero2(), Placement::zero3()];
    let trainings = placements.map(|placement| {
        let config = DdpConfig::default().with_placement(placement);
        Ok(Training {
            placement,
            ddp: Ddp::with_config(model.clone(), world, config)?,
            optimizer: AdamWConfig::new().init(),
            times: Vec::new(),
        })
    });
    let mut trainings = trainings.into_iter().collect::<anyhow::Result<Vec<Training>>>()?;
    for round in sizes.rounds() {
        for training in &mut trainings {
            let time = timed(world, || {
                let Training { ddp, optimizer, .. } = training;
                let step = ddp.backward(|model| model.loss(input.clone()))?;
                Ok(ddp.step(optimizer, 1e-4, step.gradients)?)
            })?;
            if sizes.is_timed(round) {
                training.times.push(time);
            }
        }
    }
    if world.is_main() {
        println!("{}", sizes.head(world, &model));
        println!("{:<12} {:>10} {:>24}", "placement", "time (ms)", "relative to replicated");
        let replicated = median(trainings[0].times.clone()).as_secs_f64();
        for Training { placement, times, .. } in trainings {
            let time = median(times).as_secs_f64();
            let (name, ratio) = (placement.to_string(), time / replicated);
            println!("{name:<12} {:>10.1} {ratio:>24.3}", time * 1e3);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("placement", |words| Args::try_parse_from(words));
    }
}
