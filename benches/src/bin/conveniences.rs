//! Measures the cost of reports and guards: the same step bare, and with everything that a practitioner enables, in
//! blocks that take turns in one run.
//!
//! `cargo run --release -p bonfire-benches --bin conveniences -- --nproc 2`
//!
//! Bare is data, forward, backward and the optimizer. Everything adds a journal that writes JSON lines and
//! TensorBoard's events and shows figures every `--interval` steps, clipping left out on both sides; an agreement of
//! all ranks on whether to stop before every step; and an accuracy, recorded with the figures. Heartbeats and the
//! flight recorder are on in both: the example `watching` of `bonfire-testkit` measures them.

#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use bonfire::LaunchArgs;
use bonfire::collective::Proposal;
use bonfire::prelude::*;
use bonfire::report::{Activity, Journal, JournalConfig};
use bonfire_benches::{Mlp, median, timed};
use bonfire_testkit::Estimate;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;

/// Time a training step with and without its conveniences.
#[derive(Clone, Debug, Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    /// Hidden layers, each with a weight and a bias
    #[arg(long, default_value_t = 8)]
    layers: usize,

    /// Width of every layer
    #[arg(long, default_value_t = 256)]
    width: usize,

    /// Samples per rank and step
    #[arg(long, default_value_t = 256)]
    batch: usize,

    /// Pairs of blocks, one of each kind
    #[arg(long, default_value_t = 60)]
    blocks: usize,

    /// Steps of a block, at whose end figures are shown
    #[arg(long, default_value_t = 20)]
    interval: usize,
}

struct Training {
    ddp: Ddp<Mlp>,
    optimizer: ModuleOptimizer,
    device: Device,
    shape: [usize; 2],
}

/// A small rate: only the time matters.
const RATE: f64 = 1e-4;

fn main() -> bonfire::Result<()> {
    let args: Args = bonfire::launcher::parse_args();
    bonfire::launch_with(&args.launch.clone(), |world| measure(&world, &args))
}

fn measure(world: &World, args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut bare = Training::new(world, args)?;
    let mut full = Training::new(world, args)?;
    let mut journal = journal(world, args, folder.path())?;
    let mut pairs = Vec::new();
    // One pair to warm up.
    for pair in 0..args.blocks + 1 {
        let mut without = || timed(world, || bare.block(args.interval));
        let mut with = || timed(world, || full.block_with(&mut journal, world, args.interval));
        // Whichever is second finds the machine as the first left it.
        let (without, with) = if pair % 2 == 0 {
            let without = without()?;
            (without, with()?)
        } else {
            let with = with()?;
            (without()?, with)
        };
        if pair > 0 {
            pairs.push((without, with));
        }
    }
    journal.close()?;
    if world.is_main() {
        report(world, args, &pairs);
    }
    Ok(())
}

fn journal(
    world: &World,
    args: &Args,
    folder: &Path,
) -> Result<Journal, bonfire::report::ReportError> {
    let config = JournalConfig::new("A benchmark", ((args.blocks + 1) * args.interval) as u64)
        .with_samples_per_step(args.batch * world.world_size().len(), "samples")
        .with_folder(folder);
    Journal::new(world, config)
}

impl Training {
    fn new(world: &World, args: &Args) -> Result<Self, bonfire::ddp::TrainError> {
        let device = world.device().autodiff();
        Ok(Self {
            ddp: Ddp::new(Mlp::new(args.layers, args.width, &device), world)?,
            optimizer: SgdConfig::new().init(),
            device,
            shape: [args.batch, args.width],
        })
    }

    fn batch(&self) -> Tensor<2> {
        Tensor::random(self.shape, Distribution::Normal(0.0, 1.0), &self.device)
    }

    fn block(&mut self, steps: usize) -> anyhow::Result<()> {
        for _ in 0..steps {
            let batch = self.batch();
            let step = self.ddp.backward(|model| model.loss(batch))?;
            self.ddp.step(&mut self.optimizer, RATE, step.gradients)?;
        }
        Ok(())
    }

    fn block_with(
        &mut self,
        journal: &mut Journal,
        world: &World,
        steps: usize,
    ) -> anyhow::Result<()> {
        for _ in 0..steps {
            let batch = journal.time(Activity::Data, || self.batch());
            let agreed = world.group().agree(Proposal::default())?;
            assert!(agreed.stop.is_none(), "no rank is asked to stop");
            let step = self.ddp.backward(|model| model.loss(batch))?;
            journal.step(&step);
            journal.time(Activity::Optimizer, || {
                self.ddp.step(&mut self.optimizer, RATE, step.gradients)
            })?;
        }
        journal.figures(Some(RATE))?;
        journal.value("accuracy", 0.5)?;
        Ok(())
    }
}

fn report(world: &World, args: &Args, pairs: &[(Duration, Duration)]) {
    let per_step = |times: Vec<Duration>| median(times).as_secs_f64() * 1e3 / args.interval as f64;
    let bare = per_step(pairs.iter().map(|pair| pair.0).collect());
    let full = per_step(pairs.iter().map(|pair| pair.1).collect());
    let ratios: Vec<f64> =
        pairs.iter().map(|(without, with)| with.div_duration_f64(*without)).collect();
    println!(
        "{} ranks x batch {}, {} layers of {}, {} pairs of {} steps",
        world.world_size(),
        args.batch,
        args.layers,
        args.width,
        args.blocks,
        args.interval
    );
    println!("bare step {bare:.3} ms, with everything {full:.3} ms (medians of blocks)");
    println!("ratio, pair by pair: {}", Estimate::of(ratios));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("conveniences", |words| Args::try_parse_from(words));
    }
}
