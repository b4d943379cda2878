//! Why a trial ended.

use bonfire_collective::CollectiveError;
use bonfire_train::TrainError;

/// Why a trial ended.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The ranks failed to work together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A value could not be read from the device.
    #[error("{what} cannot be read from the device: {cause}")]
    Unreadable {
        /// What it was.
        what: &'static str,
        /// What the backend says.
        cause: String,
    },
    /// Training was not right.
    #[error("{0}")]
    Wrong(String),
}
