//! Waits that people should know of.

use std::time::{Duration, Instant};

use crate::platform::clock;

/// A wait for others of the job, which is logged once it is long.
#[derive(Debug)]
pub struct LongWait {
    started: Instant,
    tell_after: Duration,
}

impl LongWait {
    pub fn begin() -> Self {
        Self { started: clock::now(), tell_after: Duration::from_secs(5) }
    }

    /// Reports what is waited for, if the wait is long or has doubled since the last report.
    pub fn log(&mut self, awaited: impl FnOnce() -> String) {
        let waited = clock::since(self.started);
        if waited >= self.tell_after {
            self.tell_after = 2 * waited;
            let (awaited, waited) = (awaited(), waited.as_secs());
            tracing::warn!(target: "bonfire", "waiting for {awaited}, for {waited} s now");
        }
    }
}
