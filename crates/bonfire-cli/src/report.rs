//! `bonfire report`: runs side by side on one page.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bonfire_page::{Report, page};
use clap::Args;

/// Compare runs: one page with their curves, their times, and what differs between them.
///
/// FOLDER is what a training has written into, as it says at its end: runs/20261124-122530-gpt. A run that goes on, or
/// was killed, has its curves so far. The page is one file that needs nothing else.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The folders of the runs
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,

    /// The page
    #[arg(long, value_name = "FILE", default_value = "runs.html")]
    out: PathBuf,
}

pub(crate) fn run(args: &ReportArgs) -> ExitCode {
    match write(args) {
        Ok(()) => {
            println!("{}", args.out.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write(args: &ReportArgs) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for folder in &args.folders {
        runs.push((folder.display().to_string(), Report::read(folder)?));
    }
    let out = &args.out;
    std::fs::write(out, page(&runs)).with_context(|| format!("cannot write {}", out.display()))
}
