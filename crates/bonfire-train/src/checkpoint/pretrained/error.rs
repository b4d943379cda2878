//! Errors of loading and writing parameters.

use bonfire_checkpoint::record::RecordError;
use bonfire_checkpoint::weights::FileError;

use crate::TrainError;

/// Loading or writing parameters failed, on all ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Rank 0 cannot read or write the file. All ranks return this error.
    #[error(transparent)]
    File(#[from] FileError),
    /// The ranks' models differ, or a rank failed.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<RecordError> for WeightsError {
    fn from(error: RecordError) -> Self {
        Self::Train(error.into())
    }
}
