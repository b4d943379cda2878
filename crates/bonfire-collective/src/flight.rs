//! Flight records in files: what each rank recorded, left behind when its group failed.
//!
//! A file is one JSON object, [`FlightRecord`]. It is written to a temporary name and renamed, so a file
//! that is there is whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bonfire_plan::Rank;
use bonfire_plan::wire::Operation;
use serde::{Deserialize, Serialize};

use crate::recorder::Record;

/// The variable that names the folder for flight records, where the program's options do not.
pub const FLIGHT_DIR_VARIABLE: &str = "BONFIRE_FLIGHT_DIR";

const VERSION: u32 = 1;
const PREFIX: &str = "flight-";
const SUFFIX: &str = ".json";

/// The last operations of one rank in one group that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// Of this format.
    pub version: u32,
    /// Number of the group in its job; 0 is all ranks of the job.
    pub group: u32,
    /// The rank in this group.
    pub rank: Rank,
    /// The same rank in the whole job.
    pub job_rank: Rank,
    /// Ranks in this group.
    pub world_size: u32,
    /// The process that wrote it.
    pub process_id: u32,
    /// When it was written, by this host's clock, since 1970.
    pub written: Duration,
    /// Why the group failed.
    pub failure: String,
    /// The operations, the latest first.
    pub operations: Vec<FlightOperation>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightOperation {
    /// What was called, and from where.
    pub operation: Operation,
    /// What the program calls the data, if it has said so.
    pub name: Option<String>,
    /// How long before the file was written it began.
    pub started_ago: Duration,
    /// How long before the file was written it ended; `None` if it had not.
    pub ended_ago: Option<Duration>,
}

impl FlightOperation {
    /// Bytes of its data in the collective.
    pub fn bytes(&self) -> u64 {
        let Operation { count, dtype, .. } = self.operation;
        count.saturating_mul(dtype.size_bytes() as u64)
    }
}

impl From<Record> for FlightOperation {
    fn from(record: Record) -> Self {
        Self {
            operation: record.call.operation,
            name: record.call.name,
            started_ago: record.started_ago,
            ended_ago: record.ended_ago,
        }
    }
}

/// Where a rank leaves its flight record, and what it says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) folder: PathBuf,
    pub(crate) group: u32,
    pub(crate) rank: Rank,
    pub(crate) job_rank: Rank,
    pub(crate) world_size: u32,
}

impl Desk {
    /// Leaves these operations behind.
    pub(crate) fn write(
        &self,
        failure: &str,
        records: impl Iterator<Item = Record>,
    ) -> io::Result<PathBuf> {
        let process_id = std::process::id();
        let record = FlightRecord {
            version: VERSION,
            group: self.group,
            rank: self.rank,
            job_rank: self.job_rank,
            world_size: self.world_size,
            process_id,
            written: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            failure: failure.to_owned(),
            operations: records.map(FlightOperation::from).collect(),
        };
        fs::create_dir_all(&self.folder)?;
        let Self { group, rank, .. } = self;
        let name = format!("{PREFIX}group-{group}-rank-{rank}-{process_id}{SUFFIX}");
        let path = self.folder.join(name);
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_vec(&record)?)?;
        fs::rename(&unfinished, &path)?;
        Ok(path)
    }
}

/// The flight records in a folder: of each rank of each group the latest one, ordered by group and rank.
///
/// # Errors
/// If the folder cannot be read, or a file in it that is named like a flight record is none of this
/// version.
pub fn read_flight_records(folder: &Path) -> io::Result<Vec<FlightRecord>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            records.push(read(&path)?);
        }
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
    let record: FlightRecord =
        serde_json::from_slice(&fs::read(path)?).map_err(|error| bad(error.to_string()))?;
    if record.version != VERSION {
        return Err(bad(format!(
            "it has version {}, not {VERSION}",
            record.version
        )));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk(folder: &Path, rank: u32) -> Desk {
        Desk {
            folder: folder.to_owned(),
            group: 0,
            rank: Rank::new(rank),
            job_rank: Rank::new(rank),
            world_size: 3,
        }
    }

    #[test]
    fn the_latest_record_of_each_rank_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("made on demand");
        for rank in [2, 0] {
            desk(&folder, rank)
                .write("first", std::iter::empty())
                .unwrap();
        }
        // Another process was the same rank later.
        let path = desk(&folder, 0)
            .write("second", std::iter::empty())
            .unwrap();
        fs::copy(&path, path.with_file_name("flight-group-0-rank-0-1.json")).unwrap();
        desk(&folder, 0).write("third", std::iter::empty()).unwrap();
        fs::write(folder.join("rank-0.log"), "something else").unwrap();
        let records = read_flight_records(&folder).unwrap();
        let read: Vec<(u32, &str)> = records
            .iter()
            .map(|record| (record.rank.get(), record.failure.as_str()))
            .collect();
        assert_eq!(read, [(0, "third"), (2, "first")]);
    }

    #[test]
    fn what_is_no_record_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["{", r#"{"version":1}"#] {
            fs::write(folder.path().join("flight-x.json"), text).unwrap();
            let error = read_flight_records(folder.path()).unwrap_err().to_string();
            assert!(
                error.contains("flight-x.json is not a flight record"),
                "{error}"
            );
        }
        let path = desk(folder.path(), 0)
            .write("", std::iter::empty())
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        let text = text.replace("\"version\":1", "\"version\":2");
        fs::write(folder.path().join("flight-x.json"), text).unwrap();
        let error = read_flight_records(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it has version 2, not 1"), "{error}");
    }
}
