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
        /// The verb of the failed operation, such as `open`, `sync` or `rename`.
        action: &'static str,
        /// The file or folder that was accessed; of a renaming, the old name.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A file of a checkpoint cannot be written.
    #[error(
        "cannot write {what} to {path}: {cause}; checkpoints need a folder that rank 0 can write to, with room for one \
         more than are kept"
    )]
    Unwritten {
        /// The content of the file: the parameters, or the optimizer's state.
        what: String,
        /// The file of the checkpoint that is incomplete or missing.
        path: PathBuf,
        /// The message of Burn's record writer, or of the file system.
        cause: String,
    },
    /// Another training saves in the same folder.
    #[error(
        "another training saves in {folder}: {by}; give each training a folder of its own, or end the other one first"
    )]
    InUse {
        /// The folder whose lock another process holds.
        folder: PathBuf,
        /// The process and host that hold the lock, or `another process` if unknown.
        by: String,
    },
    /// Rank 0 failed; the other ranks get this error.
    #[error("rank 0 could not read or write: {cause}")]
    OnWriter {
        /// The message of the error that rank 0 returned.
        cause: String,
    },
    /// A value has no serialized form.
    #[error("{what} cannot be saved: {cause}")]
    Unwritable {
        /// The value that was to be saved, such as the program's state.
        what: String,
        /// The message of the serializer, or of the thread that saves.
        cause: String,
    },
    /// There are checkpoints, but all of them are damaged.
    #[error(
        "none of the {count} checkpoints in {folder} is intact; the last one: {cause}; restore a \
         copy, or start again in another folder"
    )]
    AllDamaged {
        /// The folder in which all checkpoints were checked.
        folder: PathBuf,
        /// The number of checkpoints that were found and checked.
        count: usize,
        /// The fault of the first checkpoint that was checked.
        cause: String,
    },
    /// The requested checkpoint is damaged.
    #[error("checkpoint {path} is damaged: {cause}; restore a copy, or resume from another")]
    Damaged {
        /// The folder of the one checkpoint that was requested.
        path: PathBuf,
        /// The first file that is missing, unreadable or differs from the manifest.
        cause: String,
    },
    /// The checkpoint is intact, but belongs to another program.
    #[error(
        "checkpoint {path} is of another {what}: {cause}; build what it was made with, or start \
         again in another folder"
    )]
    Other {
        /// The folder of the checkpoint, or of all checkpoints of compression.
        path: PathBuf,
        /// The part that does not fit: model, optimizer, program state or compression.
        what: String,
        /// The first difference, or the message of the deserializer.
        cause: String,
    },
}
