//! The flight records of an attempt of the job: where its ranks leave them, and what they say together.

pub(crate) mod leftovers;

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bonfire_collective::{FLIGHT_DIR_VARIABLE, FlightRecord, GroupReport, read_flight_records};
use bonfire_plan::Rank;

use crate::failure::{Exit, JobFailure, PEER_FAILED};

const GROUPS_MAX: usize = 4;
/// How much of a failure distinguishes it from others.
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
        Self { is_ours: named.is_none(), folder: named.map_or(folder, PathBuf::from), since: now() }
    }

    /// The folder, if the ranks would not find it by themselves.
    pub(crate) fn to_pass_on(&self) -> Option<&Path> {
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

    /// Corrects who is to blame by the records of all hosts: a rank that ended because of another, or because it and
    /// another disagreed, has seen the cause without being it.
    pub(crate) fn correct(failure: &mut JobFailure, records: &[FlightRecord]) {
        for report in reports(records) {
            let disagreeing = report.disagreeing();
            let (culprit, exit) = match (&disagreeing[..], report.late().first()) {
                (&[one], _) => (one, Exit::Disagreed { with: None }),
                (&[one, other, ..], _) => (one, Exit::Disagreed { with: report.job_rank(other) }),
                ([], Some(&late)) if failure.exit == PEER_FAILED => (late, Exit::Late),
                ([], _) => continue,
            };
            let Some(rank) = report.job_rank(culprit) else {
                continue;
            };
            failure.exit = exit;
            if failure.rank != rank {
                let mut of_culprit = records.iter().filter(|record| record.job_rank == rank);
                failure.process_id = of_culprit.next().map(|record| record.process_id);
                failure.rank = rank;
                failure.host = None;
                failure.last_lines.clear();
            }
            return;
        }
    }

    /// What the records of all hosts say together, several lines, for a user who is about to see
    /// `said`; nothing if there are none.
    pub(crate) fn verdict(&self, records: &[FlightRecord], said: &[String]) -> String {
        let mut text = String::new();
        let reports = reports(records);
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
                for doing in report.statuses() {
                    let _ = writeln!(text, "  {group}{doing}");
                }
            }
        }
        if reports.len() > GROUPS_MAX {
            let _ = writeln!(text, "  {} more groups failed", reports.len() - GROUPS_MAX);
        }
        let _ =
            writeln!(text, "  their last operations: bonfire inspect {}", self.folder.display());
        text
    }
}

/// The ranks of the job that others waited for in vain.
pub(crate) fn late(records: &[FlightRecord]) -> Vec<Rank> {
    let of_group = |report: &GroupReport| -> Vec<Rank> {
        let late = report.late().into_iter();
        late.filter_map(|rank| report.job_rank(rank)).collect()
    };
    reports(records).iter().flat_map(of_group).collect()
}

fn reports(records: &[FlightRecord]) -> Vec<GroupReport> {
    let mut records = records.to_vec();
    records.sort_by_key(|record| (record.group, record.rank));
    let groups = records.chunk_by(|one, other| one.group == other.group);
    groups.filter_map(GroupReport::of).collect()
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
    use bonfire_collective::{FlightOperation, Progress};

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
        assert_eq!((flights.read(), flights.to_pass_on()), (Vec::new(), None));
        write(folder.path(), &record(1, None));
        assert_eq!(flights.read(), []);
        write(folder.path(), &record(1, Some("now")));
        assert_eq!(flights.read().len(), 1);
    }

    /// That the rank was in its operation of this number, or had left it.
    fn in_operation(rank: u32, seq: u64, ended_ago: Option<Duration>) -> FlightRecord {
        let text = format!(
            r#"{{"operation":{{"group":0,"seq":{seq},"collective":"barrier","algorithm":"one_shot","dtype":"u8",
            "reduce":null,"count":0,"layout":0,"call_site":""}},"name":null,
            "started_ago":{{"secs":60,"nanos":0}},"ended_ago":null}}"#
        );
        let mut operation: FlightOperation = serde_json::from_str(&text).unwrap();
        operation.ended_ago = ended_ago;
        FlightRecord {
            operations: vec![operation],
            job_rank: Rank::new(rank + 10),
            group: 1,
            ..record(rank, Some("of the group"))
        }
    }

    fn failure(exit: Exit) -> JobFailure {
        JobFailure {
            rank: Rank::new(10),
            process_id: Some(7),
            host: None,
            exit,
            last_lines: vec!["error: something".to_owned()],
        }
    }

    #[test]
    fn the_last_line_names_who_was_waited_for_and_not_who_waited() {
        let mut failure = failure(PEER_FAILED);
        let left = Some(Duration::from_secs(61));
        Flights::correct(&mut failure, &[in_operation(0, 5, None), in_operation(1, 4, left)]);
        assert_eq!(
            failure.to_string(),
            "root cause: rank 11 (process 1) did not come where the others waited for it, and was ended; see \
             above what it did instead"
        );
    }

    #[test]
    fn a_rank_that_failed_by_itself_stays_the_culprit() {
        let mut failure = failure(Exit::Code(3));
        let before = failure.clone();
        Flights::correct(&mut failure, &[in_operation(0, 5, None), in_operation(1, 4, None)]);
        assert_eq!(failure, before);
    }

    #[test]
    fn the_last_line_names_both_of_two_ranks_that_disagree_and_the_odd_one_of_three() {
        let disagree = |seqs: &[u64]| -> String {
            let of = |(rank, &seq): (usize, &u64)| FlightRecord {
                failure: Some(
                    "ranks disagree: rank 0 is in one, but rank 1 is in another".to_owned(),
                ),
                ..in_operation(rank as u32, seq, None)
            };
            let mut failure = failure(Exit::Code(1));
            let records: Vec<FlightRecord> = seqs.iter().enumerate().map(of).collect();
            Flights::correct(&mut failure, &records);
            failure.summary()
        };
        let text = disagree(&[5, 6]);
        assert!(text.starts_with("rank 10 (process 7) and rank 11 called different"), "{text}");
        let text = disagree(&[5, 5, 6]);
        assert!(text.starts_with("rank 12 (process 1) called another operation than"), "{text}");
    }

    #[test]
    fn what_a_rank_has_said_is_not_said_again() {
        let flights = Flights::begin(PathBuf::from("/some/folder"), &[]);
        assert_eq!(flights.verdict(&[], &[]), "");
        let records = || vec![record(1, Some("rank 0 failed: no data"))];
        let text = flights.verdict(&records(), &["error: something else".to_owned()]);
        assert_eq!(
            text,
            "what the ranks did when the job failed:\n  rank 0 failed: no data\n  \
             rank 1 had called nothing in this group\n  \
             rank 0 left no record: ended, stopped or out of reach\n  \
             their last operations: bonfire inspect /some/folder\n"
        );
        let text = flights.verdict(&records(), &["error: rank 0 failed: no data".to_owned()]);
        assert_eq!(
            text,
            "what the ranks did when the job failed:\n  \
             their last operations: bonfire inspect /some/folder\n"
        );
    }
}
