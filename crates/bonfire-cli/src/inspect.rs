//! `bonfire inspect`: what the ranks of a failed job did last, from their flight records.

mod text;
mod timeline;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use bonfire_collective::{FLIGHT_DIR_VARIABLE, FlightRecord, read_flight_records};
use clap::Args;

/// Show what the ranks of a failed job did last.
///
/// Reads the flight records that ranks leave in the folder that BONFIRE_FLIGHT_DIR named when their group
/// failed, those of all hosts if they are in one folder.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The folder with the flight records
    folder: PathBuf,

    /// Write all recorded operations to this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Print the records as one JSON array instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    match inspect(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let folder = args.folder.display();
    let records = read_flight_records(&args.folder)
        .with_context(|| format!("cannot read the flight records in {folder}"))?;
    ensure!(
        !records.is_empty(),
        "{folder} has no flight records: ranks leave them when their group fails, in the folder that \
         {FLIGHT_DIR_VARIABLE} names when they start"
    );
    if let Some(path) = &args.trace {
        timeline::write(path, &records)?;
    }
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&records)?;
        text.push('\n');
        text
    } else {
        let groups = records.chunk_by(|one, other| one.group == other.group);
        groups.map(|ranks| text::Group(ranks).to_string()).collect()
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever closed the output does not want the rest.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to the standard output")
        }
        _ => Ok(()),
    }
}

/// The record that was written first: whoever notices a failure first knows most of it.
fn first_written(ranks: &[FlightRecord]) -> &FlightRecord {
    ranks
        .iter()
        .min_by_key(|record| record.written)
        .expect("a group of records has one")
}
