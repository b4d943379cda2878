//! Flight records: what each rank recorded, reported while it runs, and left in files when its group failed.
//!
//! A file is one JSON object, [`FlightRecord`]. It is written to a temporary name and renamed, so a file
//! that is there is whole.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::health::recorder::{FlightOperation, Progress, Recorder};

const VERSION: u32 = 1;

/// Far more than any job; a damaged record may have any number.
const RANKS_MAX: u32 = 1 << 14;
const PREFIX: &str = "flight-";
const SUFFIX: &str = ".json";
const FOLDER_MODE: u32 = 0o700;

/// The last operations of one rank in one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// The version of this format.
    pub version: u32,
    /// Number of the group in its job; 0 is all ranks of the job.
    pub group: u32,
    /// The rank in this group.
    pub rank: Rank,
    /// The same rank in the whole job.
    pub job_rank: Rank,
    /// How many ranks this group has.
    pub world_size: u32,
    /// The process that wrote it.
    pub process_id: u32,
    /// When it was written, by this host's clock, since 1970.
    pub written: Duration,
    /// Why the group failed; nothing if it had not when this was written.
    pub failure: Option<String>,
    /// What the program had said of its progress.
    #[serde(default)]
    pub progress: Progress,
    /// How long its operations have taken since they first waited for another rank, all together.
    #[serde(default)]
    pub waited: Duration,
    /// The operations, the latest first.
    pub operations: Vec<FlightOperation>,
}

/// What a flight record says of the rank that it is from, and where it is left.
#[derive(Clone, Debug)]
pub(crate) struct RecordTarget {
    /// Without one, it is only sent to those who ask.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) group: u32,
    pub(crate) rank: Rank,
    pub(crate) job_rank: Rank,
    pub(crate) world_size: u32,
}

impl RecordTarget {
    pub(crate) fn record(
        &self,
        failure: Option<String>,
        recorder: &Recorder,
        operations_max: usize,
    ) -> FlightRecord {
        let records = recorder.records().take(operations_max);
        FlightRecord {
            version: VERSION,
            group: self.group,
            rank: self.rank,
            job_rank: self.job_rank,
            world_size: self.world_size,
            process_id: std::process::id(),
            failure,
            progress: recorder.progress(),
            waited: recorder.waited().0,
            operations: records.collect(),
            // Last, because the times of the operations count back from it.
            written: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }
}

/// Leaves a record in a folder; where. A folder that is not there is made for this user alone: a record
/// says what a rank says to nobody else either, names and places in the program.
pub(crate) fn write_flight_record(folder: &Path, record: &FlightRecord) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
    let FlightRecord { group, rank, process_id, .. } = record;
    let name = format!("{PREFIX}group-{group}-rank-{rank}-{process_id}{SUFFIX}");
    let path = folder.join(name);
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, serde_json::to_vec(record)?)?;
    fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// The flight records in a folder: of each rank of each group the latest one, ordered by group and rank. Logs a warning
/// for each file that is named like one and cannot be read, and leaves it out.
///
/// # Errors
/// If the folder cannot be read, or there are files named like flight records and none is one of this version.
pub fn read_flight_records(folder: &Path) -> io::Result<Vec<FlightRecord>> {
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            match read(&path) {
                Ok(record) => records.push(record),
                Err(error) => unreadable.push(error),
            }
        }
    }
    if records.is_empty()
        && let Some(error) = unreadable.pop()
    {
        return Err(error);
    }
    for error in unreadable {
        tracing::warn!(target: "bonfire", "{error}; it is left out");
    }
    records.sort_by_key(|record| (record.group, record.rank, std::cmp::Reverse(record.written)));
    records.dedup_by_key(|record| (record.group, record.rank));
    Ok(records)
}

fn read(path: &Path) -> io::Result<FlightRecord> {
    let bad = |reason: String| {
        let text = format!("{} is not a flight record: {reason}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    // Reading a pipe or a device may have no end.
    if !fs::metadata(path).map_err(|error| bad(error.to_string()))?.is_file() {
        return Err(bad("it is not a regular file".to_owned()));
    }
    let text = fs::read(path).map_err(|error| bad(error.to_string()))?;
    let record: FlightRecord =
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if record.version != VERSION {
        return Err(bad(format!("it has version {}, not {VERSION}", record.version)));
    }
    if record.world_size > RANKS_MAX || record.rank.get() >= record.world_size {
        let (rank, ranks) = (record.rank, record.world_size);
        return Err(bad(format!("it is of rank {rank} of {ranks}")));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(folder: &Path, rank: u32, failure: &str) -> PathBuf {
        let target = RecordTarget {
            folder: None,
            group: 0,
            rank: Rank::new(rank),
            job_rank: Rank::new(rank),
            world_size: 3,
        };
        let record = target.record(Some(failure.to_owned()), &Recorder::default(), 1);
        write_flight_record(folder, &record).unwrap()
    }

    #[test]
    fn the_latest_record_of_each_rank_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made on demand");
        for rank in [2, 0] {
            leave(&folder, rank, "first");
        }
        // Another process was the same rank later.
        let path = leave(&folder, 0, "second");
        fs::copy(&path, path.with_file_name("flight-group-0-rank-0-1.json")).unwrap();
        leave(&folder, 0, "third");
        fs::write(folder.join("rank-0.log"), "something else").unwrap();
        let records = read_flight_records(&folder).unwrap();
        let read: Vec<(u32, Option<&str>)> =
            records.iter().map(|record| (record.rank.get(), record.failure.as_deref())).collect();
        assert_eq!(read, [(0, Some("third")), (2, Some("first"))]);
    }

    #[test]
    fn what_is_no_record_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["{", r#"{"version":1}"#] {
            fs::write(folder.path().join("flight-x.json"), text).unwrap();
            let error = read_flight_records(folder.path()).unwrap_err().to_string();
            assert!(error.contains("flight-x.json is not a flight record"), "{error}");
        }
        let path = leave(folder.path(), 0, "");
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        for (from, to, says) in [
            ("\"version\":1", "\"version\":2", "it has version 2, not 1"),
            ("\"world_size\":3", "\"world_size\":4294967295", "it is of rank 0 of 4294967295"),
            ("\"world_size\":3", "\"world_size\":0", "it is of rank 0 of 0"),
        ] {
            fs::write(folder.path().join("flight-x.json"), text.replace(from, to)).unwrap();
            let error = read_flight_records(folder.path()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        fs::remove_file(folder.path().join("flight-x.json")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("flight-x.json")).unwrap();
        let error = read_flight_records(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is not a regular file"), "{error}");
    }
}
