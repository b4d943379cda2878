//! Failures inside of a pass, which cannot return them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::ProcessGroup;

use crate::TrainError;

/// The first failure of a pass, and a group that ends with it. Clones keep the same failure.
#[derive(Clone, Debug)]
pub(crate) struct PassFailures {
    /// Those that share its fate end, too.
    group: ProcessGroup,
    first: Arc<Mutex<Option<TrainError>>>,
}

impl PassFailures {
    pub(crate) fn of(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            first: Arc::default(),
        }
    }

    pub(crate) fn keep(&self, error: TrainError) {
        self.group.abort(&error.to_string());
        self.lock().get_or_insert(error);
    }

    pub(crate) fn take(&self) -> Option<TrainError> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<TrainError>> {
        // Each change is one assignment.
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
