//! What can go wrong with the files of a run.

use std::io;
use std::path::PathBuf;

/// A report cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A file could not be written.
    #[error("cannot write {}: {source}; make room, or choose another folder", .path.display())]
    Unwritable {
        /// The file or its folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A `report.json` that this version does not read.
    #[error("{} is not a report of a training: {source}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A folder in which no training has written.
    #[error("there is no run in {}: it has neither report.json nor log.jsonl", .path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
}
