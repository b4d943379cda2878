//! Time that never goes back.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[inline]
pub fn now() -> Instant {
    Instant::now()
}

#[inline]
pub fn since(instant: Instant) -> Duration {
    now().saturating_duration_since(instant)
}

/// The time since some moment, exact to a tick of the kernel and read at a fraction of the cost.
#[inline]
pub fn coarse() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
