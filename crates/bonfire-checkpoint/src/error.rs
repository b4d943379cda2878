//! Errors of writing and reading checkpoints.

use std::io;
use std::path::PathBuf;

/// A checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Rank 0 cannot access a file or folder.
    #[error(
        "cannot {action} {path}: {source}; checkpoints need a folder that rank 0 can write to, with room for one more \
         than are kept"
    )]
    Io {
        /// The action that failed, for the message.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of a checkpoint cannot be written.
    #[error(
        "cannot write {what} to {path}: {cause}; checkpoints need a folder that rank 0 can write to, with room for one \
         more than are kept"
    )]
    Unwritten {
        /// The part of the training it belongs to.
        what: String,
        /// The path of the file.
        path: PathBuf,
        /// The cause, as a text for the message.
        cause: String,
    },
    /// Another training saves in the same folder.
    #[error(
        "another training saves in {folder}: {by}; give each training a folder of its own, or end the other one first"
    )]
    InUse {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// The process that holds the lock.
        by: String,
    },
    /// Rank 0 failed; the other ranks get this error.
    #[error("rank 0 could not use the checkpoints: {cause}")]
    OnWriter {
        /// The cause, as a text for the message.
        cause: String,
    },
    /// A value has no serialized form.
    #[error("{what} cannot be saved: {cause}")]
    Unwritable {
        /// The part of the training it belongs to.
        what: String,
        /// The cause, as a text for the message.
        cause: String,
    },
    /// There are checkpoints, but all of them are damaged.
    #[error(
        "none of the {count} checkpoints in {folder} is intact; the last one: {cause}; restore a \
         copy, or start again in another folder"
    )]
    AllDamaged {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// The number of damaged checkpoints.
        count: usize,
        /// A description of the last one's damage.
        cause: String,
    },
    /// The requested checkpoint is damaged.
    #[error("checkpoint {path} is damaged: {cause}; restore a copy, or resume from another")]
    Damaged {
        /// The path of the file or folder.
        path: PathBuf,
        /// A description of the damage.
        cause: String,
    },
    /// The checkpoint is intact, but belongs to another program.
    #[error(
        "checkpoint {path} is of another {what}: {cause}; build what it was made with, or start \
         anew in another folder"
    )]
    Other {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The part: model, optimizer or state.
        what: String,
        /// A description of the difference.
        cause: String,
    },
}
