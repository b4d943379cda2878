//! What the other ranks hear when a step fails on this one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bonfire_collective::panic_message;
use burn::module::Module;

use super::{Ddp, Synchroniser, lock};
use crate::TrainError;

impl<M: Module> Ddp<M> {
    /// Runs `work`; if it fails or panics, the other ranks are told.
    pub(crate) fn guarded<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        if let Some(failure) = self.group.failure() {
            // Others may wait for this one in smaller groups.
            return Err(self.given_up(failure.into()));
        }
        // After a panic nothing of `self` is used but the group, which has ended.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        if let Some(failure) = self.failures.take() {
            // What else went wrong follows from it.
            return Err(self.given_up(failure));
        }
        match outcome {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(self.given_up(error)),
            Err(panic) => match self.pass_failure() {
                // A layer has no other way out of a forward pass than a panic.
                Some(failure) => Err(self.given_up(failure)),
                None => {
                    self.abort(&format!("panicked: {}", panic_message(&*panic)));
                    resume_unwind(panic)
                }
            },
        }
    }

    /// What went wrong where a model exchanged something with other ranks.
    fn pass_failure(&self) -> Option<TrainError> {
        let gatherer = self.gatherer.as_ref();
        let failure = gatherer.and_then(|gatherer| gatherer.failure());
        failure.or_else(|| self.norm_groups.failure())
    }

    fn given_up(&self, error: TrainError) -> TrainError {
        self.abort(&error.to_string());
        error
    }

    /// Ends all groups in which other ranks may wait for this one.
    fn abort(&self, cause: &str) {
        self.group.abort(cause);
        self.shards.groups().abort(cause);
        self.norm_groups.abort(cause);
        self.failures.abort(cause);
        if let Synchroniser::Bucketed(reducer) = &self.synchroniser {
            lock(reducer).abort(cause);
        }
    }
}
