//! The time of a step, by part.

use std::time::{Duration, Instant};

/// The time of one synchronised step on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTiming {
    /// The forward and the backward pass, with the communication that they hide; of all
    /// micro-batches since the step before. Where gradients stay on their devices, until those are done if the host
    /// waits for them.
    pub forward_backward: Duration,
    /// The time that communication added: this rank waited for gradients of other ranks after its own backward pass
    /// and, if batches are weighted, for their weights. Not the time in which only the device waits.
    pub exposed_communication: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    total: Duration,
}

impl Stopwatch {
    pub(crate) fn time<R>(&mut self, activity: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = activity();
        self.total += start.elapsed();
        result
    }

    pub(crate) fn add(&mut self, time: Duration) {
        self.total += time;
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }
}
