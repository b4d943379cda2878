//! Errors of recording a training.

use std::io;
use std::path::{Path, PathBuf};

use bonfire_collective::CollectiveError;
use bonfire_page::PageError;
use bonfire_train::TrainError;

/// A training cannot be recorded or its report written.
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
    /// A file about the training cannot be written.
    #[error(
        "cannot write {}: {source}; make room, or keep the journal in another folder", .path.display()
    )]
    Unwritable {
        /// The path of the file or its folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

pub(crate) fn unwritable(path: &Path, source: io::Error) -> ReportError {
    ReportError::Unwritable {
        path: path.to_owned(),
        source,
    }
}
