//! SIGUSR1: a process writes down what the ranks of its job do. A thread does, not the signal's handler.

use std::io::Write;
use std::path::Path;

use bonfire_sys::process::RequestWatch;

use super::Inspector;
use crate::health::flight::{FlightRecord, write_flight_record};
use crate::health::query;
use crate::health::reports::RankRecorder;
use crate::options::RecordOnSignal;
use crate::options::place::RankEnv;

/// Calls `on_request` for every signal, if this process is to heed it.
pub(super) fn watch(
    on_signal: RecordOnSignal,
    env: &RankEnv,
    on_request: impl FnMut() + Send + 'static,
) -> Option<RequestWatch> {
    let wanted = match on_signal {
        RecordOnSignal::Launched => env.launcher_id.is_some(),
        RecordOnSignal::Always => true,
        RecordOnSignal::Never => false,
    };
    if !wanted {
        return None;
    }
    let rank = env.rank;
    match RequestWatch::start(on_request) {
        Ok(Some(watch)) => Some(watch),
        Ok(None) => {
            tracing::info!(
                target: "bonfire",
                "rank {rank}: SIGUSR1 is the program's own; `bonfire inspect` works without it"
            );
            None
        }
        Err(error) => {
            tracing::warn!(target: "bonfire", "rank {rank}: SIGUSR1 cannot be watched: {error}");
            None
        }
    }
}

impl Inspector {
    /// Says on the error stream what all ranks of this process's groups do, as `bonfire inspect`
    /// shows, and leaves the records of the ranks of this process where flight records go.
    pub(super) fn record_all(&self) {
        for group in self.groups().values() {
            let Some(report) = query::report(group, 1) else {
                continue;
            };
            let mut text = format!("{report}");
            for RankRecorder { target, recorder } in group.reports().recorders() {
                let Some(folder) = &target.folder else {
                    continue;
                };
                let failure = report.failure().map(str::to_owned);
                let record = target.record(failure, &recorder, usize::MAX);
                text.push_str(&keep(folder, &record));
            }
            // A closed stream cannot report it.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}

/// Writes the record; how that went, in a line.
fn keep(folder: &Path, record: &FlightRecord) -> String {
    let rank = record.rank;
    match write_flight_record(folder, record) {
        Ok(path) => format!("Flight record of rank {rank}: {}\n", path.display()),
        Err(error) => format!("No flight record of rank {rank} in {}: {error}\n", folder.display()),
    }
}
