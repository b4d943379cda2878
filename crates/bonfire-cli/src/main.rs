//! The `bonfire` command.

#![forbid(unsafe_code)]

mod bench;
mod completions;
mod config;
mod doctor;
#[cfg(feature = "cuda")]
mod gpu;
mod inspect;
mod operation;
mod plan;
mod quantity;
mod report;
mod run;
#[cfg(feature = "cuda")]
mod selftest;
mod simulate;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Data-parallel training: start jobs, and measure or simulate their communication.
#[derive(Debug, Parser)]
#[command(name = "bonfire", version = env!("BONFIRE_VERSION"), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Scaling(run::ScalingArgs),
    Bench(bench::BenchArgs),
    Simulate(simulate::SimulateArgs),
    Config(config::ConfigArgs),
    Plan(plan::PlanArgs),
    Report(report::ReportArgs),
    Doctor(doctor::DoctorArgs),
    Inspect(inspect::InspectArgs),
    Completions(completions::CompletionsArgs),
    #[cfg(feature = "cuda")]
    Selftest(selftest::SelftestArgs),
}

fn main() -> ExitCode {
    let cli: Cli = bonfire_launch::parse_args();
    bonfire_launch::log_to_stderr("", "warn");
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Scaling(args) => run::scale(&args),
        Command::Bench(args) => bench::run(args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Completions(args) => completions::run::<Cli>(&args),
        #[cfg(feature = "cuda")]
        Command::Selftest(args) => selftest::run(args),
    }
}
