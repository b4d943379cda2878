//! `bonfire selftest --cuda`: shows on the machine itself that collectives between GPUs are right, survive
//! failures, and how fast they are.
//!
//! It needs the driver, NVRTC and this program. Each part runs in a process of its own with a limit, so that
//! one that hangs or loses the device does not take the others along.

mod bench;
mod choice;
mod conformance;
mod faults;
mod inventory;
mod nccl;
mod pack;
mod part;
mod ranks;
mod training;
mod value;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::gpu::devices;
use part::{Outcome, Part};

/// Show that collectives between GPUs are right, survive failures, and how fast they are.
///
/// Runs on however many GPUs there are: ranks share them in turn. Needs the driver, NVRTC and this program.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Test the GPUs
    #[arg(long, required = true)]
    cuda: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Ranks to test with
    #[arg(long, value_delimiter = ',', value_name = "N", default_values = ["2", "4", "8"],
          value_parser = clap::value_parser!(u32).range(1..=16))]
    ranks: Vec<u32>,
    /// Fewer sizes and repetitions
    #[arg(long)]
    quick: bool,
    /// Run this part in this process: how the program starts itself
    #[arg(long, hide = true, value_enum)]
    part: Option<Part>,
}

pub(crate) fn run(args: SelftestArgs) -> ExitCode {
    let result = match args.part {
        Some(part) => part.run_here(&args).map(|()| true),
        None => all(&args),
    };
    let passed = result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        false
    });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all(args: &SelftestArgs) -> anyhow::Result<bool> {
    // Without a driver there is one line to say, and no part to run.
    devices::all()?;
    let parts =
        if args.only.is_empty() { Part::value_variants().to_vec() } else { args.only.clone() };
    let run = |part: Part| part.run_apart(args).map(|outcome| (part, outcome));
    let outcomes = parts.into_iter().map(run).collect::<anyhow::Result<Vec<_>>>()?;
    println!();
    for (part, outcome) in &outcomes {
        println!("{:<14} {outcome}", part.name());
    }
    let failed = |(_, outcome): &(Part, Outcome)| matches!(outcome, Outcome::Failed(_));
    Ok(!outcomes.iter().any(failed))
}
