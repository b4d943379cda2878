//! The time of the simulation.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::simulation::place::here;

/// What the time of every simulation is counted from. Only differences are ever looked at.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

pub fn now() -> Instant {
    *ORIGIN + coarse()
}

pub fn since(instant: Instant) -> Duration {
    now().saturating_duration_since(instant)
}

/// The time since the simulation began.
///
/// # Panics
/// Outside of a simulation.
pub fn coarse() -> Duration {
    let place = here();
    place.give_way();
    place.time()
}
