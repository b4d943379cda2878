//! What can go wrong with checkpoints.

use std::io;
use std::path::PathBuf;

/// A checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder on rank 0.
    #[error(
        "cannot {action} {path}: {source}; checkpoints need a folder that rank 0 can write to, with room for one more \
         than are kept"
    )]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of a checkpoint.
    #[error(
        "cannot write {what} to {path}: {cause}; checkpoints need a folder that rank 0 can write to, with room for one \
         more than are kept"
    )]
    Unwritten {
        /// Which part of the training.
        what: String,
        /// Where.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Two trainings cannot save in one folder.
    #[error(
        "another training saves in {folder}: {by}; give each training a folder of its own, or end the other one first"
    )]
    InUse {
        /// Where.
        folder: PathBuf,
        /// Which process that is.
        by: String,
    },
    /// Rank 0 failed; this is what the other ranks get.
    #[error("rank 0 could not use the checkpoints: {cause}")]
    OnWriter {
        /// Its error.
        cause: String,
    },
    /// Something cannot be put into bytes.
    #[error("{what} cannot be saved: {cause}")]
    Unwritable {
        /// Which part of the training.
        what: String,
        /// Why.
        cause: String,
    },
    /// There are checkpoints, but none that can be trusted.
    #[error(
        "none of the {count} checkpoints in {folder} is whole; the last one: {cause}; bring back a \
         copy, or start anew in another folder"
    )]
    AllDamaged {
        /// Where.
        folder: PathBuf,
        /// How many.
        count: usize,
        /// What is wrong with the last.
        cause: String,
    },
    /// The checkpoint that was asked for cannot be trusted.
    #[error("checkpoint {path} is damaged: {cause}; bring back a copy, or go on from another")]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The checkpoint is whole, but not of this program.
    #[error(
        "checkpoint {path} is of another {what}: {cause}; build what it was made with, or start \
         anew in another folder"
    )]
    Other {
        /// Which checkpoint.
        path: PathBuf,
        /// Model, optimizer or state.
        what: String,
        /// What does not fit.
        cause: String,
    },
}
