//! A checkpoint that is being written.

use std::fs::{self, File};
use std::path::PathBuf;

use super::files::{clear, io, sync, write_synced};
use super::{Folder, MANIFEST};
use crate::CheckpointError;
use crate::manifest::{Entry, Manifest};

/// A checkpoint that is being written. One that is dropped unfinished leaves nothing.
#[derive(Debug)]
pub struct Draft<'a> {
    pub(super) folder: &'a Folder,
    pub(super) manifest: Manifest,
    pub(super) target: PathBuf,
    pub(super) unfinished: PathBuf,
}

impl Draft<'_> {
    /// Returns the path at which a file is to be written, for [`adopt`](Self::adopt).
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.unfinished.join(name)
    }

    /// Adds a file that has been written there.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn adopt(&mut self, name: &str) -> Result<(), CheckpointError> {
        let path = self.path_of(name);
        let mut file = File::open(&path).map_err(io("open", &path))?;
        let entry = Entry::read(name, &mut file).map_err(io("read", &path))?;
        self.manifest.files.push(entry);
        file.sync_all().map_err(io("sync", &path))
    }

    /// Writes a file with this content.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.manifest.files.push(Entry::of(name, bytes));
        write_synced(&self.unfinished.join(name), bytes)
    }

    /// Renames the draft, so that the checkpoint becomes visible.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn finish(self) -> Result<(), CheckpointError> {
        write_synced(&self.unfinished.join(MANIFEST), &self.manifest.text())?;
        sync(&self.unfinished)?;
        fs::rename(&self.unfinished, &self.target).map_err(io("rename", &self.unfinished))?;
        sync(self.folder.path())
    }
}

impl Drop for Draft<'_> {
    /// Removes the unfinished folder, if it was not renamed, so that a failed save leaves no files on a full disk.
    fn drop(&mut self) {
        if let Err(error) = clear(&self.unfinished) {
            tracing::warn!(%error, "a checkpoint that was not finished is still there");
        }
    }
}
