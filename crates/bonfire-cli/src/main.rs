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

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use bonfire_launch::LaunchError;
use clap::{Parser, Subcommand};
use serde::{Serialize, de::DeserializeOwned};

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

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a JSON file. In an error on its content, `wrong` follows its path.
fn read_json<T: DeserializeOwned>(path: &Path, wrong: &str) -> anyhow::Result<T> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{} {wrong}", path.display()))
}

fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Refuses a file that could not be written later. What is in it stays until then.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

fn save_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    save(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that closed the output does not want the rest.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to the standard output")
        }
        _ => Ok(()),
    }
}

/// An error and its causes, separated by colons; a repeated cause is left out.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn main() -> ExitCode {
    let cli: Cli = bonfire_launch::parse_args();
    bonfire_launch::log_to_stderr("", "warn");
    let success = |()| ExitCode::SUCCESS;
    let ended = match cli.command {
        Command::Run(args) => run::run(args).map(success),
        Command::Scaling(args) => args.run().map(success),
        Command::Bench(args) => bench::bench(&args).map(success),
        Command::Simulate(args) => args.run().map(success),
        Command::Config(args) => config::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Report(args) => report::write(&args).map(success),
        Command::Doctor(args) => doctor::run(args).map(success),
        Command::Inspect(args) => inspect::inspect(&args).map(success),
        Command::Completions(args) => completions::run::<Cli>(&args).map(success),
        #[cfg(feature = "cuda")]
        Command::Selftest(args) => Ok(selftest::run(args)),
    };
    ended.unwrap_or_else(|error| {
        // A closed terminal must not cause a panic.
        let _ = writeln!(io::stderr(), "error: {}", with_causes(&error));
        // That of the rank that failed first, if the command's work was a job.
        ExitCode::from(error.downcast_ref().map_or(1, LaunchError::exit_code))
    })
}
