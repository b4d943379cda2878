//! `bonfire inspect`: what the ranks of a job do, from the job itself or, after its failure, from its flight records.

mod jobs;
mod timeline;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use bonfire_collective::{FLIGHT_DIR_VARIABLE, FlightRecord, GroupReport, read_flight_records};
use clap::Args;

/// Show what the ranks of a job do, or did last.
///
/// A running job of this user is asked, all its hosts through the processes on this one; it continues unchanged. Of a
/// failed job, reads the flight records that ranks leave in the folder that BONFIRE_FLIGHT_DIR named when their group
/// failed, those of all hosts if they are in one folder. Without an argument, lists the running jobs.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The name of a running job, the process of its launcher or of one of its ranks, or the folder with
    /// the flight records
    job: Option<PathBuf>,
    /// Write all recorded operations to this file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE", requires = "job")]
    trace: Option<PathBuf>,
    /// Print the records as one JSON array instead of text
    #[arg(long, requires = "job")]
    json: bool,
}

pub(crate) fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let Some(target) = &args.job else {
        return crate::print(&jobs::list()?);
    };
    let operations_max = if args.trace.is_some() || args.json { usize::MAX } else { 1 };
    let reports = match target.to_str().filter(|name| !is_folder(name)) {
        Some(name) => jobs::report(name, operations_max)?,
        None => read(target)?,
    };
    let records: Vec<FlightRecord> =
        reports.iter().flat_map(|report| report.records.iter().cloned()).collect();
    if let Some(path) = &args.trace {
        timeline::write(path, &records)?;
    }
    if args.json {
        return crate::print(&(serde_json::to_string_pretty(&records)? + "\n"));
    }
    crate::print(&reports.iter().map(GroupReport::to_string).collect::<String>())
}

/// A path is a folder, whether it is there or not; so is a word that names one.
fn is_folder(name: &str) -> bool {
    name.contains('/') || Path::new(name).is_dir()
}

fn read(folder: &Path) -> anyhow::Result<Vec<GroupReport>> {
    let shown = folder.display();
    let records = read_flight_records(folder)
        .with_context(|| format!("cannot read the flight records in {shown}"))?;
    ensure!(
        !records.is_empty(),
        "{shown} has no flight records: ranks leave them when their group fails, in the folder that \
         {FLIGHT_DIR_VARIABLE} names when they start"
    );
    let groups = records.chunk_by(|one, other| one.group == other.group);
    Ok(groups.filter_map(GroupReport::of).collect())
}
