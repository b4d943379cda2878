//! Errors of a run's files.

use std::io;
use std::path::PathBuf;

/// A report cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A file of the run cannot be written.
    #[error("cannot write {}: {source}; make room, or choose another folder", .path.display())]
    Unwritable {
        /// The path of the file or its folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of the run cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A `report.json` in a format that this version does not read.
    #[error("{} is not a report of a training: {source}", .path.display())]
    Malformed {
        /// The path of the file.
        path: PathBuf,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// A folder in which no training has written.
    #[error("there is no run in {}: it has neither report.json nor log.jsonl", .path.display())]
    NoRun {
        /// The path of the folder.
        path: PathBuf,
    },
}
