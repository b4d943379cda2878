//! Errors of writing and reading checkpoints.

#![allow(missing_docs, reason = "fields are named for what they hold")]

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
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// A file of a checkpoint cannot be written.
    #[error(
        "cannot write {what} to {path}: {cause}; checkpoints need a folder that rank 0 can write to, with room for one \
         more than are kept"
    )]
    Unwritten { what: String, path: PathBuf, cause: String },
    /// Another training saves in the same folder.
    #[error(
        "another training saves in {folder}: {by}; give each training a folder of its own, or end the other one first"
    )]
    InUse { folder: PathBuf, by: String },
    /// Rank 0 failed; the other ranks get this error.
    #[error("rank 0 could not use the checkpoints: {cause}")]
    OnWriter { cause: String },
    /// A value has no serialized form.
    #[error("{what} cannot be saved: {cause}")]
    Unwritable { what: String, cause: String },
    /// There are checkpoints, but all of them are damaged.
    #[error(
        "none of the {count} checkpoints in {folder} is intact; the last one: {cause}; restore a \
         copy, or start again in another folder"
    )]
    AllDamaged { folder: PathBuf, count: usize, cause: String },
    /// The requested checkpoint is damaged.
    #[error("checkpoint {path} is damaged: {cause}; restore a copy, or resume from another")]
    Damaged { path: PathBuf, cause: String },
    /// The checkpoint is intact, but belongs to another program.
    #[error(
        "checkpoint {path} is of another {what}: {cause}; build what it was made with, or start \
         anew in another folder"
    )]
    Other { path: PathBuf, what: String, cause: String },
}
