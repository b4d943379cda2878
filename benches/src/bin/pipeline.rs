//! The bubble of pipelines whose passes take a fixed time, measured and simulated.
//!
//! `cargo run --release -p bonfire-benches --bin pipeline -- --nproc 4`
//!
//! Passes sleep, so two cores are enough for four ranks. They measure the runtime: the time in which a rank waits
//! although its work is ready, and the cost of messages.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use bonfire::parallel::schedule::{Costs, Kind, PassTimes, Schedule, Shape, simulate};
use bonfire::parallel::{Output, Pass, Pipeline, PipelineError, custom_gradient};
use bonfire::{LaunchArgs, World};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use clap::Parser;

/// Measure the bubble of each schedule, a stage or two on each rank.
#[derive(Clone, Debug, Parser)]
struct Cli {
    #[command(flatten)]
    launch: LaunchArgs,

    /// How long the forward pass of all layers of a rank takes, as long as either half of a backward pass
    #[arg(long, value_name = "MS", default_value_t = 20)]
    time_ms: u64,

    /// Micro-batches of a step
    #[arg(long, value_name = "M", default_value = "8")]
    micro_batches: NonZeroU32,

    /// Measured steps, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,
}

/// The schedules, each with its stages per rank.
const KINDS: [(Kind, u32); 5] = [
    (Kind::GPipe, 1),
    (Kind::OneForwardOneBackward, 1),
    (Kind::Interleaved, 2),
    (Kind::ZeroBubbleH1, 1),
    (Kind::ZeroBubbleV, 2),
];

fn main() -> bonfire::Result<()> {
    let cli: Cli = bonfire::launcher::parse_args();
    bonfire::launch_with(&cli.launch.clone(), |world| compare(&world, &cli))
}

fn compare(world: &World, cli: &Cli) -> Result<()> {
    if world.is_main() {
        let Cli { time_ms, micro_batches, .. } = cli;
        println!(
            "passes of {time_ms} ms, {} ranks, {micro_batches} micro-batches",
            world.world_size()
        );
        println!("schedule     simulated  measured  measured / simulated");
    }
    for (kind, chunks) in KINDS {
        let schedule = Schedule::new(Shape {
            kind,
            ranks: world.world_size(),
            chunks: NonZeroU32::new(chunks).context("schedules have stages")?,
            micro_batches: cli.micro_batches,
        })?;
        let pass_s = cli.time_ms as f64 / 1000.0;
        let times =
            PassTimes { forward_s: pass_s, input_gradient_s: pass_s, weight_gradient_s: pass_s };
        let simulated = simulate(&schedule, &Costs::even(times, &schedule, 0.0)?)?.bubble();
        let pass = Duration::from_millis(cli.time_ms) / chunks;
        let measured = measure(world, schedule, pass, cli.steps)?;
        if world.is_main() {
            println!(
                "{:11}  {:7.1} %  {:6.1} %  {:.3}",
                kind.to_string(),
                100.0 * simulated,
                100.0 * measured,
                measured / simulated
            );
        }
    }
    Ok(())
}

fn measure(
    world: &World,
    schedule: Schedule,
    pass: Duration,
    steps: usize,
) -> Result<f64, PipelineError> {
    let device = world.device().autodiff();
    let micro_batch = Tensor::<2>::ones([1, 1], &device);
    let micro_batches = vec![micro_batch; schedule.micro_batches() as usize];
    let own = schedule.stages_on(world.rank()).into_iter();
    let stages = own.map(|_| LinearConfig::new(1, 1).init(&device)).collect();
    let mut pipeline = Pipeline::new(stages, schedule, world)?;
    let mut bubbles = Vec::new();
    // The first step exchanges the shapes.
    for _ in 0..=steps {
        let step = pipeline.backward(&micro_batches, |stage, given| slept(stage, given, pass))?;
        bubbles.push(step.output.bubble());
    }
    let measured = &mut bubbles[1..];
    measured.sort_by(f64::total_cmp);
    Ok(measured[measured.len() / 2])
}

fn slept(
    stage: &Linear,
    given: &mut Pass<'_, Tensor<2>>,
    pass: Duration,
) -> Result<Output, PipelineError> {
    let x = if given.is_first() {
        given.micro_batch().clone().require_grad()
    } else {
        given.input()?
    };
    let (weights, weight) = (given.weights().clone(), stage.weight.id);
    let device = stage.weight.val().device().without_autodiff();
    let x = custom_gradient(
        x,
        |x| {
            sleep(pass);
            x
        },
        move |gradient: Tensor<2>| {
            sleep(pass);
            weights.leave(weight, move || {
                sleep(pass);
                Tensor::<2>::zeros([1, 1], &device)
            });
            gradient
        },
    );
    Ok(if given.is_last() { x.mean().into() } else { x.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("pipeline", |words| Cli::try_parse_from(words));
    }
}
