//! How long a wait goes on, and how it passes the time.

use std::time::{Duration, Instant};

use bonfire_plan::Rank;

use crate::error::Failure;
use crate::poison::Poison;

/// Longest nap before a wait looks at its deadline and at the group's health again.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(20);

/// Looks at the condition before the first nap, for a caller that has nothing else to do. Some tens
/// of microseconds, about what a sleep and a wake cost.
const SPINS: u32 = 2_000;

/// How a wait begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eagerness {
    /// Look again and again for a moment, then sleep: the lowest latency.
    Spin,
    /// Sleep at once: a core is worth more to somebody else.
    Sleep,
}

/// What ended a wait.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// The group failed.
    Failed(Failure),
    /// The peer left in peace and will not do what is waited for.
    Departed,
    /// The deadline passed.
    Expired,
}

/// The limits of all waits of one operation.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
    pub(crate) eagerness: Eagerness,
    pub(crate) poison: &'a Poison,
}

impl Patience<'_> {
    /// Looks to spend before the first nap.
    pub(crate) fn spins(&self) -> u32 {
        match self.eagerness {
            Eagerness::Spin => SPINS,
            Eagerness::Sleep => 0,
        }
    }

    /// Whether the wait for `peer` may go on. `departed` is what was known of the peer *before* the
    /// condition was last looked at: only then does "gone and nothing there" mean "never".
    pub(crate) fn check(&self, departed: bool) -> Result<(), Interrupt> {
        if let Some(failure) = self.poison.failure() {
            return Err(Interrupt::Failed(failure));
        }
        if departed {
            return Err(Interrupt::Departed);
        }
        if self.started.elapsed() >= self.timeout {
            return Err(Interrupt::Expired);
        }
        Ok(())
    }

    pub(crate) fn has_departed(&self, peer: Rank) -> bool {
        self.poison.has_departed(peer)
    }
}
