//! Errors of a run's files, and of recording a training.

use std::io;
#[cfg(feature = "journal")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "journal")]
use bonfire_collective::CollectiveError;
#[cfg(feature = "journal")]
use bonfire_train::TrainError;

/// A report cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A file of the run, or its folder, cannot be written.
    #[error("cannot write {}: {source}; make room, or choose another folder", .path.display())]
    Unwritable {
        /// The file, or the folder that was to be made.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A file of the run cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The `report.json` or `log.jsonl` of the run.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A `report.json` in a format that this version does not read.
    #[error("{} is not a report of a training: {source}", .path.display())]
    Malformed {
        /// The path of the `report.json`.
        path: PathBuf,
        /// The parser's error, with line and column.
        source: serde_json::Error,
    },
    /// A folder in which no training has written.
    #[error("there is no run in {}: it has neither report.json nor log.jsonl", .path.display())]
    NoRun {
        /// The folder that was to be read.
        path: PathBuf,
    },
}

/// A training cannot be recorded or its report written.
#[cfg(feature = "journal")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A value of the training cannot be read, such as a loss from its device.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The report could not be written.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A file about the training, or its folder, cannot be written.
    #[error(
        "cannot write {}: {source}; make room, or keep the journal in another folder", .path.display()
    )]
    Unwritable {
        /// The file or folder of the journal, on rank 0.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

#[cfg(feature = "journal")]
pub(crate) fn unwritable(path: &Path, source: io::Error) -> ReportError {
    let path = path.to_owned();
    ReportError::Unwritable { path, source }
}
