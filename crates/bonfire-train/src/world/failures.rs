//! Failures inside of a pass, which cannot return them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::ProcessGroup;

use crate::TrainError;

/// The first failure of a pass, and the groups that end with it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassFailures {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    groups: Vec<ProcessGroup>,
    first: Option<TrainError>,
}

impl PassFailures {
    /// Ends these groups on a failure; each has the same parts on all ranks.
    pub(crate) fn of(groups: Vec<ProcessGroup>) -> Self {
        let first = None;
        Self {
            shared: Arc::new(Mutex::new(Shared { groups, first })),
        }
    }

    pub(crate) fn keep(&self, error: TrainError) {
        self.abort(&error.to_string());
        self.lock().first.get_or_insert(error);
    }

    pub(crate) fn take(&self) -> Option<TrainError> {
        self.lock().first.take()
    }

    pub(crate) fn abort(&self, cause: &str) {
        let groups = self.lock().groups.clone();
        groups.iter().for_each(|group| group.abort(cause));
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Each change is one assignment.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
