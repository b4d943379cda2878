//! What can go wrong with the account of a training.

use std::io;
use std::path::{Path, PathBuf};

use bonfire_collective::CollectiveError;
use bonfire_page::PageError;
use bonfire_train::TrainError;

/// The account of a training cannot be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// What is told about the training cannot be had from it, such as a loss from its device.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The report could not be written.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A file about the training could not be written.
    #[error(
        "cannot write {}: {source}; make room, or keep the journal in another folder", .path.display()
    )]
    Unwritable {
        /// The file or its folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What happens to `path` when it is written.
pub(crate) fn unwritable(path: &Path, source: io::Error) -> ReportError {
    ReportError::Unwritable {
        path: path.to_owned(),
        source,
    }
}
