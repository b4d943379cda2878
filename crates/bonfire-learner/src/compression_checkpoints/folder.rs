//! The state of compression, step by step. Burn's learner decides when it is saved and deleted.

use std::path::{Path, PathBuf};

use bonfire_checkpoint::{CheckpointError, Folder, Found, Milestone};
use bonfire_collective::WorldSize;

use bonfire_train::CompressionState;

const STATE: &str = "compression.cbor";

/// A folder with the [`CompressionState`] of several steps, for a program that keeps model and optimizer elsewhere.
/// Only rank 0 writes and reads it. A step's state appears completely or not at all, with the hash of its content.
#[derive(Clone, Debug)]
pub(crate) struct CompressionFolder(Folder);

impl CompressionFolder {
    /// Uses the folder at `path`, which the first state makes.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(Folder::new(path.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Checks that the folder can be made and written to.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub(crate) fn prepare(&self) -> Result<(), CheckpointError> {
        self.0.prepare()
    }

    /// Saves the state of `ranks` ranks after a step, in place of an earlier one of that step.
    ///
    /// # Errors
    /// [`CheckpointError::Io`], [`CheckpointError::Unwritable`].
    pub(crate) fn save(
        &self,
        step: u64,
        ranks: WorldSize,
        state: &CompressionState,
    ) -> Result<(), CheckpointError> {
        let milestone = Milestone { step, metric: None };
        let mut draft = self.0.begin(milestone, ranks.get())?;
        let mut bytes = Vec::new();
        ciborium::into_writer(state, &mut bytes).map_err(|cause| CheckpointError::Unwritable {
            what: "what compression has left out".to_owned(),
            cause: cause.to_string(),
        })?;
        draft.add(STATE, &bytes)?;
        draft.finish()?;
        // The step may have been saved before, by a run that was then resumed from an earlier one.
        let mut found = self.0.revisions(step)?;
        found.pop();
        found.iter().try_for_each(|path| self.0.remove(path))
    }

    /// Reads the bytes of the state of a step, for [`parse`](Self::parse), on other ranks, too; empty if it was not
    /// saved.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]; [`CheckpointError::Damaged`] if it is damaged.
    pub(crate) fn read(&self, step: u64) -> Result<Vec<u8>, CheckpointError> {
        match self.0.revisions(step)?.pop() {
            Some(path) => Found::at(path)?.read(STATE),
            None => Ok(Vec::new()),
        }
    }

    /// Parses the bytes of a state.
    ///
    /// # Errors
    /// [`CheckpointError::Other`].
    pub(crate) fn parse(&self, bytes: &[u8]) -> Result<CompressionState, CheckpointError> {
        ciborium::from_reader(bytes).map_err(|cause| CheckpointError::Other {
            path: self.path().to_owned(),
            what: "compression".to_owned(),
            cause: cause.to_string(),
        })
    }

    /// Removes the state of a step.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub(crate) fn forget(&self, step: u64) -> Result<(), CheckpointError> {
        let found = self.0.revisions(step)?;
        found.iter().try_for_each(|path| self.0.remove(path))
    }
}
