//! Errors of ranks that write or read together.

use bonfire_collective::{CollectiveError, Rank};

use crate::CheckpointError;

/// Ranks could not write or read a record together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A file or its content is at fault.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another rank sends a value that this program cannot read.
    #[error(
        "rank {rank} sent a value that this program cannot read ({cause}); start the same build of the \
         program on every rank"
    )]
    OtherProgram {
        /// The rank that sent the value.
        rank: Rank,
        /// A description of the fault.
        cause: String,
    },
}
