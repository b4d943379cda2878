//! `bonfire doctor`: what this machine has, what of it gets in the way of ranks, and what to do about it.
//!
//! It reads and asks, and changes nothing. Facts are gathered first ([`host`], [`gpus`]), then judged
//! ([`problem`]), then printed, so that the judgement can be tested without the machine.

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a program without CUDA finds no GPU"))]
mod gpus;
mod host;
mod problem;
mod text;

use clap::Args;
use serde::Serialize;

use gpus::Gpus;
use host::Host;
pub(crate) use host::field;
use problem::Problem;

/// Show what this machine has for ranks, what gets in their way, and what to do about it.
///
/// Prints GPUs and how they reach each other, the driver and its libraries, shared memory, processors and
/// networks. Ends with success also where there is no GPU.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    host: Host,
    gpus: Gpus,
    problems: Vec<Problem>,
}

pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<()> {
    let report = Report::of_this_machine();
    let text =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.to_string() };
    crate::print(&text)
}

impl Report {
    fn of_this_machine() -> Self {
        let host = Host::of_this_machine();
        let gpus = gpus::look::gpus();
        let problems = problem::problems(&host, &gpus);
        Self { version: env!("CARGO_PKG_VERSION"), host, gpus, problems }
    }
}
