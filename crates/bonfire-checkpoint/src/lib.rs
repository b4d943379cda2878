//! Folders of checkpoints, each of which exists completely or not at all.
//!
//! A checkpoint is a folder of files in a [`Folder`]. It is written under a hidden name, synced and renamed. A
//! manifest in it has the size and the hash of every file; a checkpoint that does not agree with it is passed over
//! for the one before. What is in the files `bonfire-train` decides; [`record`] has how ranks write and read them together.
//! With the feature `weights`, there are files of parameters for and from other programs, too.

#![forbid(unsafe_code)]

mod error;
mod folder;
mod manifest;
mod milestone;
mod probe;
pub mod record;
#[cfg(feature = "weights")]
pub mod weights;

pub use error::CheckpointError;
pub use folder::{Draft, Folder, Found};
pub use milestone::{Best, Keep, Milestone};
pub use probe::is_writable;
