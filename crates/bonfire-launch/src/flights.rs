//! The flight records of an attempt of the job: where its ranks leave them, and what they say together.

pub(crate) mod leftovers;

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bonfire_collective::{FLIGHT_DIR_VARIABLE, FlightRecord, GroupReport, read_flight_records};

/// Groups that are told of.
const GROUPS_MAX: usize = 4;

/// How much of a failure tells it from others.
const KNOWN_AGAIN_BYTES: usize = 200;

/// Where the ranks of this host leave their flight records.
#[derive(Debug)]
pub(crate) struct Flights {
    folder: PathBuf,
    /// Whether the folder is of this launcher's choice.
    is_ours: bool,
    /// Records that are older are of another attempt or job.
    since: Duration,
}

impl Flights {
    /// Of ranks that start now: in the folder that the environment or the program's own `variables`
    /// name, else in `folder`.
    pub(crate) fn begin(folder: PathBuf, variables: &[(OsString, OsString)]) -> Self {
        let own = variables.iter().rev();
        let mut own = own.filter(|(name, _)| name == FLIGHT_DIR_VARIABLE);
        let named = own.next().map(|(_, value)| value.clone());
        let named = named.or_else(|| std::env::var_os(FLIGHT_DIR_VARIABLE));
        Self {
            is_ours: named.is_none(),
            folder: named.map_or(folder, PathBuf::from),
            since: now(),
        }
    }

    /// The folder, if the ranks would not know it without being told.
    pub(crate) fn to_be_told(&self) -> Option<&Path> {
        self.is_ours.then_some(&self.folder)
    }

    /// What the ranks of this host did when their groups failed: the last operation of each that left
    /// a record. Without any, or if they cannot be read, none.
    pub(crate) fn read(&self) -> Vec<FlightRecord> {
        if !self.folder.is_dir() {
            return Vec::new();
        }
        let records = read_flight_records(&self.folder).unwrap_or_else(|error| {
            tracing::warn!("the flight records cannot be read: {error}");
            Vec::new()
        });
        let ours = |record: &FlightRecord| record.failure.is_some() && record.written >= self.since;
        let mut records: Vec<FlightRecord> = records.into_iter().filter(ours).collect();
        for record in &mut records {
            record.operations.truncate(1);
        }
        records
    }

    /// What the records of all hosts say together, several lines, for a user who is about to be told
    /// `said`; nothing if there are none.
    pub(crate) fn verdict(&self, mut records: Vec<FlightRecord>, said: &[String]) -> String {
        records.sort_by_key(|record| (record.group, record.rank));
        let mut text = String::new();
        let groups = records.chunk_by(|one, other| one.group == other.group);
        let reports: Vec<GroupReport> = groups.filter_map(GroupReport::of).collect();
        if reports.is_empty() {
            return text;
        }
        text.push_str("what the ranks did when the job failed:\n");
        for report in reports.iter().take(GROUPS_MAX) {
            let failure = report.failure().unwrap_or_default();
            let group = match report.group {
                0 => String::new(),
                number => format!("group {number}: "),
            };
            // A verdict that a rank has printed says who did what already.
            if !said.iter().any(|line| line.contains(beginning(failure))) {
                let _ = writeln!(text, "  {group}{failure}");
                for doing in report.doings() {
                    let _ = writeln!(text, "  {group}{doing}");
                }
            }
        }
        if reports.len() > GROUPS_MAX {
            let _ = writeln!(text, "  {} more groups failed", reports.len() - GROUPS_MAX);
        }
        let _ = writeln!(
            text,
            "  their last operations: bonfire inspect {}",
            self.folder.display()
        );
        text
    }
}

/// Enough of a failure to know it again in a line of which the end was not kept.
fn beginning(failure: &str) -> &str {
    let line = failure.lines().next().unwrap_or_default();
    &line[..line.floor_char_boundary(KNOWN_AGAIN_BYTES)]
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_collective::Progress;
    use bonfire_plan::Rank;

    fn record(rank: u32, failure: Option<&str>) -> FlightRecord {
        FlightRecord {
            version: 1,
            group: 0,
            rank: Rank::new(rank),
            job_rank: Rank::new(rank),
            world_size: 2,
            process_id: 1,
            written: now(),
            failure: failure.map(str::to_owned),
            progress: Progress::default(),
            waited: Duration::ZERO,
            operations: Vec::new(),
        }
    }

    /// As a rank leaves it.
    fn write(folder: &Path, record: &FlightRecord) {
        let text = serde_json::to_string(record).unwrap();
        std::fs::write(folder.join(format!("flight-{}.json", record.rank)), text).unwrap();
    }

    #[test]
    fn only_failures_of_this_attempt_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut old = record(0, Some("of another job"));
        old.written -= Duration::from_secs(5);
        write(folder.path(), &old);
        let variables = [(FLIGHT_DIR_VARIABLE.into(), folder.path().into())];
        let flights = Flights::begin(PathBuf::from("/none"), &variables);
        assert_eq!((flights.read(), flights.to_be_told()), (Vec::new(), None));
        write(folder.path(), &record(1, None));
        assert_eq!(flights.read(), []);
        write(folder.path(), &record(1, Some("now")));
        assert_eq!(flights.read().len(), 1);
    }

    #[test]
    fn what_a_rank_has_said_is_not_said_again() {
        let flights = Flights::begin(PathBuf::from("/some/folder"), &[]);
        assert_eq!(flights.verdict(Vec::new(), &[]), "");
        let records = || vec![record(1, Some("rank 0 failed: no data"))];
        let text = flights.verdict(records(), &["error: something else".to_owned()]);
        assert_eq!(
            text,
            "what the ranks did when the job failed:\n  rank 0 failed: no data\n  \
             rank 1 had called nothing in this group\n  \
             rank 0 left no record: ended, stopped or out of reach\n  \
             their last operations: bonfire inspect /some/folder\n"
        );
        let text = flights.verdict(records(), &["error: rank 0 failed: no data".to_owned()]);
        assert_eq!(
            text,
            "what the ranks did when the job failed:\n  \
             their last operations: bonfire inspect /some/folder\n"
        );
    }
}
