//! What can go wrong while ranks write or read together.

use bonfire_collective::{CollectiveError, Rank};

use crate::CheckpointError;

/// Ranks could not write or read a record together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A file or its content.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another rank says what this program cannot read.
    #[error(
        "rank {rank} said something that this program does not know ({cause}); start the same build of the \
         program on every rank"
    )]
    OtherProgram {
        /// The other rank.
        rank: Rank,
        /// What is wrong with it.
        cause: String,
    },
}
