//! The reports to other ranks when a step fails on this one.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};

use bonfire_collective::{ProcessGroup, panic_message};
use burn::module::Module;

use super::Ddp;
use crate::TrainError;
use crate::world::watchdog::Watched;

/// Number of backward passes with an unchanged model after which a warning is logged.
const STANDSTILL_PASSES: u64 = 20;

impl<M: Module> Ddp<M> {
    /// Runs `work`, which is a call that users know by this name; reports its failure or panic to the other ranks.
    #[track_caller]
    pub(crate) fn call<R>(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Self) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        if let Some(failure) = self.group.failure() {
            // Others may wait for this one on a device.
            return Err(self.abort_with(failure.into()));
        }
        // Operations are those of this call, and of this step, which ranks compare.
        let (step, call_site) = (self.step_number(), Location::caller());
        let inside = self.groups().map(|group| group.map(|group| group.enter(call_site, step)));
        self.say(name);
        // After a panic nothing of `self` is used but the group, which has ended.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        drop(inside);
        self.say(&format!("after {name}"));
        let error = match (self.failures.take(), outcome) {
            // What else went wrong follows from it.
            (Some(failure), _) => failure,
            (None, Ok(Ok(result))) => return Ok(result),
            (None, Ok(Err(error))) => error,
            (None, Err(panic)) => match self.norm_groups.failure() {
                // A layer has no other way out of a forward pass than a panic.
                Some(failure) => failure,
                None => {
                    self.abort(&format!("panicked: {}", panic_message(&*panic)));
                    resume_unwind(panic)
                }
            },
        };
        Err(self.abort_with(error))
    }

    fn groups(&self) -> [Option<&ProcessGroup>; 3] {
        let shards = self.shards.groups();
        [Some(&self.group), Some(shards.shards()), shards.copies()]
    }

    /// Records the phase, so that a status request shows if this rank computes or does something else.
    fn say(&self, phase: &str) {
        let groups = self.groups().into_iter().flatten();
        groups.for_each(|group| group.phase(phase));
    }

    /// The number of the present step: the count of steps, or of backward passes if the program steps otherwise. One
    /// that runs a pass too many is in another step than the other ranks.
    pub(super) fn step_number(&self) -> u64 {
        match self.updates {
            0 => self.steps,
            updates => updates,
        }
    }

    #[track_caller]
    pub(super) fn begin_step(&mut self, name: &'static str) -> Watched {
        let step = self.step_number();
        self.group.progress(step);
        self.steps += 1;
        self.passes += 1;
        if self.passes == STANDSTILL_PASSES && self.group.rank().get() == 0 {
            tracing::warn!(
                target: "bonfire",
                "{STANDSTILL_PASSES} backward passes without Ddp::step: the model that gradients are computed of does \
                 not change; give the gradients to ddp.step(&mut optimizer, learning_rate, gradients)"
            );
        }
        self.watchdog.watch(name, step, &self.group)
    }

    fn abort_with(&self, error: TrainError) -> TrainError {
        // Else the last step, which is good, is lost with this one.
        let _ = self.reducer.lock().wait();
        self.abort(&error.to_string());
        error
    }

    /// Ends the groups in which other ranks may wait for this one. That of their devices is detached.
    fn abort(&self, cause: &str) {
        self.group.abort(cause);
        if let Some(devices) = &self.reducer.lock().device_group {
            devices.abort(cause);
        }
    }
}
