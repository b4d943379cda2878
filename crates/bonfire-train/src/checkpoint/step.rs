//! The checkpoints of one step, for a keeper that another decides for: Burn's learner says what is saved and
//! deleted, and when.

use std::path::PathBuf;

use super::CheckpointError;
use super::folder::{Content, Folder, read, step_of};

/// Which checkpoints of a step go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forget {
    All,
    /// All but the one saved last.
    Superseded,
}

impl Folder {
    /// The checkpoint of a step, which must be whole; nothing if there is none.
    pub(crate) fn of_step(&self, step: u64) -> Result<Option<Content>, CheckpointError> {
        let Some(path) = self.revisions(step)?.pop() else {
            return Ok(None);
        };
        match read(&path) {
            Ok(content) => Ok(Some(content)),
            Err(cause) => Err(CheckpointError::Damaged { path, cause }),
        }
    }

    /// Removes the checkpoints of a step, and all but the last of one that was saved again.
    pub(crate) fn forget(&self, step: u64, which: Forget) -> Result<(), CheckpointError> {
        let mut found = self.revisions(step)?;
        if which == Forget::Superseded {
            found.pop();
        }
        found.iter().try_for_each(|path| self.remove(path))
    }

    /// The checkpoints of a step, the one saved last at the end.
    fn revisions(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut found = self.entries()?;
        found.retain(|path| step_of(path).is_some_and(|(found, _)| found == step));
        found.sort_by_key(|path| step_of(path));
        Ok(found)
    }
}
