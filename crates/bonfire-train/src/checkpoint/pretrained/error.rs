//! Why no parameters can be loaded or written.

use bonfire_collective::Rank;
use bonfire_weights::FileError;

use crate::TrainError;

/// Loading or writing parameters failed, on all ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// Rank 0 can do nothing with the file. All ranks return this error.
    #[error(transparent)]
    File(#[from] FileError),
    /// The reading rank tells what became of the file in a form that this program does not know.
    #[error(
        "rank {reader} has read the weights in {path}, and says of it what this program does not know \
         ({source}); start the same build of the program on every rank"
    )]
    UnreadableReport {
        /// The rank that reads.
        reader: Rank,
        /// The file.
        path: String,
        /// What is wrong with what it says.
        source: serde_json::Error,
    },
    /// The ranks' models differ, or a rank failed.
    #[error(transparent)]
    Train(#[from] TrainError),
}
