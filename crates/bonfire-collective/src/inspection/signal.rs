//! SIGUSR1: a process writes down what its ranks do. A thread does, not the signal's handler.

use std::fmt;
use std::io::Write;
use std::path::Path;

use bonfire_plan::Rank;
use bonfire_sys::process::RequestWatch;

use super::FrontDesk;
use crate::accounts::Witness;
use crate::environment::launcher_id;
use crate::flight::{FlightRecord, write_flight_record};

/// Whether SIGUSR1 makes a process write down what its ranks do.
///
/// The signal belongs to the program: one that handles or ignores it before the group is formed keeps it
/// whatever is chosen here, and one that does so later takes it over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordOnSignal {
    /// It does where Bonfire's launcher started the process.
    #[default]
    Launched,
    /// It does.
    Always,
    /// It does not: the signal is left alone.
    Never,
}

impl RecordOnSignal {
    /// Calls `on_request` for every signal, if this process is to heed it.
    pub(super) fn watch(
        self,
        rank: Rank,
        on_request: impl FnMut() + Send + 'static,
    ) -> Option<RequestWatch> {
        let wanted = match self {
            Self::Launched => launcher_id().is_some(),
            Self::Always => true,
            Self::Never => false,
        };
        if !wanted {
            return None;
        }
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
}

impl FrontDesk {
    /// Leaves the records of the ranks of this process where flight records go, or says on the error
    /// stream what they do.
    pub(super) fn record_all(&self) {
        for group in self.groups() {
            let Some(poison) = group.poison.upgrade() else {
                continue;
            };
            for Witness { desk, recorder } in poison.accounts().witnesses() {
                let record = desk.record(None, &recorder, usize::MAX);
                let kept = desk.folder.as_deref().map(|folder| keep(folder, &record));
                let line = format!("{}{}\n", Told(&record), kept.unwrap_or_default());
                // A closed stream has nobody to tell.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
    }
}

/// Writes the record; how that went.
fn keep(folder: &Path, record: &FlightRecord) -> String {
    match write_flight_record(folder, record) {
        Ok(path) => format!("; flight record in {}", path.display()),
        Err(error) => format!("; no flight record in {}: {error}", folder.display()),
    }
}

/// One line for whoever has sent the signal.
struct Told<'a>(&'a FlightRecord);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(record) = self;
        write!(f, "bonfire: rank {}", record.rank)?;
        if record.group != 0 {
            write!(f, " of group {}", record.group)?;
        }
        match record.operations.first() {
            None => write!(f, " has called nothing yet")?,
            Some(last) => match last.ended_ago {
                None => write!(
                    f,
                    " is in {last} for {:.1} s",
                    last.started_ago.as_secs_f64()
                )?,
                Some(ago) => write!(f, " has left {last} {:.1} s ago", ago.as_secs_f64())?,
            },
        }
        match record.progress.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", record.progress),
        }
    }
}
