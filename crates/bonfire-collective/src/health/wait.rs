//! How long a wait lasts, and how it passes the time.

use std::cell::{Cell, OnceCell};
use std::time::{Duration, Instant};

use bonfire_plan::Rank;

use crate::health::failure::Failure;
use crate::health::poison::Poison;
use crate::health::query::{self, WARN_AFTER};
use bonfire_connect::platform::clock;

/// Longest nap before a wait looks at its deadline and at the group's health again.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(20);
/// How long an eager wait lasts before its first nap: about what going to sleep and being woken
/// costs both sides (40 to 80 us over TCP), so a wait costs at most twice the better of the two.
///
/// Ranks that outnumber the cores need it as much as others, although they yield instead of spinning. Where they gave
/// up after a few yields, a rank that happened to have a core to itself yielded to nobody, slept after a microsecond,
/// and had to be woken for every frame, which kept it alone on its core: four ranks on two cores stayed for seconds
/// at 26 or 65 us for a small all-reduce over shared memory, or at 4 to 7 us, as it fell out. With this they need 4
/// to 7 us always; over TCP 40 to 50 instead of 40 to 80 (2026-11-21).
const EAGER_TIME: Duration = Duration::from_micros(100);
/// Looks between two readings of the clock. A reading costs as much as a look at memory, and a tenth
/// of a look at a socket.
const LOOKS_PER_READING: u32 = 16;
/// If a wait did not look for this long, this process stood still, as after Ctrl-Z, and with it
/// most likely the rank that is waited for. That counts for no deadline.
const OWN_GAP: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eagerness {
    /// Look again and again for a moment, then sleep: the lowest latency.
    Spin,
    /// Let others run for a moment, then sleep: they need the core to do what is waited for.
    Yield,
    /// Sleep at once: a core is worth more to somebody else.
    Sleep,
}

#[derive(Debug)]
pub(crate) enum Interrupt {
    Failed(Failure),
    /// The peer left in peace and will not do what is waited for.
    Departed,
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing: look again at once.
    Spin,
    /// As [`Spin`](Self::Spin), but there has been no news for a while: look at everybody.
    LookAround,
    Yield,
    /// Sleep until there may be news, for [`NAP_MAX`] at most.
    Nap,
}

#[derive(Clone, Debug)]
pub(crate) struct WaitLimits<'a> {
    /// When the first wait had looked in vain for a while, and the clock was read for the first time.
    /// A small operation is over before: reading the clock would be a tenth of it.
    started: OnceCell<Instant>,
    looked: Cell<Option<Instant>>,
    /// For how long this process stood still since it was read first.
    stood_still: Cell<Duration>,
    has_warned: Cell<bool>,
    timeout: Duration,
    eagerness: Eagerness,
    poison: &'a Poison,
}

#[derive(Debug)]
pub(crate) struct Backoff {
    looks: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The clock has not been read yet: most waits end before.
    Fresh,
    Eager {
        since: Instant,
    },
    Napping,
}

impl<'a> WaitLimits<'a> {
    pub(crate) fn new(timeout: Duration, eagerness: Eagerness, poison: &'a Poison) -> Self {
        Self {
            started: OnceCell::new(),
            looked: Cell::new(None),
            stood_still: Cell::new(Duration::ZERO),
            has_warned: Cell::new(false),
            timeout,
            eagerness,
            poison,
        }
    }

    /// The same limits for somebody who waits in another way.
    pub(crate) fn with_eagerness(&self, eagerness: Eagerness) -> Self {
        Self { eagerness, ..self.clone() }
    }

    /// What the waits learn of the group's health.
    pub(crate) fn poison(&self) -> &'a Poison {
        self.poison
    }

    pub(crate) fn elapsed(&self) -> Duration {
        let started = self.started.get();
        started.map_or(Duration::ZERO, |started| clock::since(*started))
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff {
            looks: 0,
            stage: match self.eagerness {
                Eagerness::Spin | Eagerness::Yield => Stage::Fresh,
                Eagerness::Sleep => Stage::Napping,
            },
        }
    }

    /// Whether the wait for a peer may continue after a look in vain, and how. `departed` is what was known of the
    /// peer *before* the condition was looked at: only then does "gone and nothing there" mean "never".
    pub(crate) fn pause(&self, backoff: &mut Backoff, departed: bool) -> Result<Pause, Interrupt> {
        if let Some(failure) = self.poison.failure() {
            return Err(Interrupt::Failed(failure));
        }
        if departed {
            return Err(Interrupt::Departed);
        }
        backoff.looks = backoff.looks.wrapping_add(1);
        let is_eager = !matches!(backoff.stage, Stage::Napping);
        let spins = is_eager && self.eagerness == Eagerness::Spin;
        if spins && !backoff.looks.is_multiple_of(LOOKS_PER_READING) {
            return Ok(Pause::Spin);
        }
        let now = clock::now();
        let started = *self.started.get_or_init(|| now);
        if now.duration_since(started) >= self.timeout.saturating_add(self.standstill(now)) {
            return Err(Interrupt::Expired);
        }
        if self.is_worth_a_warning(now.duration_since(started)) {
            query::warn_of_wait(self.poison);
        }
        match backoff.stage {
            Stage::Fresh => backoff.stage = Stage::Eager { since: now },
            Stage::Eager { since } if now.duration_since(since) >= EAGER_TIME => {
                backoff.stage = Stage::Napping;
            }
            Stage::Eager { .. } => {}
            Stage::Napping => return Ok(Pause::Nap),
        }
        Ok(match self.eagerness {
            Eagerness::Spin => Pause::LookAround,
            Eagerness::Yield => Pause::Yield,
            Eagerness::Sleep => unreachable!("such a wait naps from the start"),
        })
    }

    /// Returns true once, when the operation has waited for long.
    fn is_worth_a_warning(&self, waited: Duration) -> bool {
        waited >= WARN_AFTER && !self.has_warned.replace(true)
    }

    /// For how long this process stood still, the time before this moment included.
    fn standstill(&self, now: Instant) -> Duration {
        let looked = self.looked.replace(Some(now)).unwrap_or(now);
        let gap = now.saturating_duration_since(looked);
        if gap >= OWN_GAP {
            self.stood_still.set(self.stood_still.get() + gap);
        }
        self.stood_still.get()
    }

    pub(crate) fn has_departed(&self, peer: Rank) -> bool {
        self.poison.has_departed(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_plan::WorldSize;

    fn limits(eagerness: Eagerness, timeout: Duration, poison: &Poison) -> WaitLimits<'_> {
        WaitLimits::new(timeout, eagerness, poison)
    }

    fn poison() -> Poison {
        Poison::new(WorldSize::new(2).unwrap())
    }

    #[test]
    fn every_wait_ends_in_naps() {
        let poison = poison();
        for eagerness in [Eagerness::Spin, Eagerness::Yield, Eagerness::Sleep] {
            let limits = limits(eagerness, Duration::from_secs(100), &poison);
            let mut backoff = limits.backoff();
            let mut pauses = Vec::new();
            while pauses.last() != Some(&Pause::Nap) {
                pauses.push(limits.pause(&mut backoff, false).unwrap());
            }
            assert_eq!(limits.pause(&mut backoff, false).unwrap(), Pause::Nap);
            let first = match eagerness {
                Eagerness::Spin => Pause::Spin,
                Eagerness::Yield => Pause::Yield,
                Eagerness::Sleep => Pause::Nap,
            };
            assert_eq!(pauses[0], first, "{eagerness:?}");
        }
    }

    /// A core of one's own must not end it: yielding to nobody takes a fraction of a microsecond.
    #[test]
    fn an_eager_wait_lasts_for_its_time_however_fast_its_looks_are() {
        let poison = poison();
        for eagerness in [Eagerness::Spin, Eagerness::Yield] {
            let limits = limits(eagerness, Duration::from_secs(100), &poison);
            let mut backoff = limits.backoff();
            let began = Instant::now();
            while limits.pause(&mut backoff, false).unwrap() != Pause::Nap {}
            let lasted = began.elapsed();
            assert!(lasted >= EAGER_TIME, "{eagerness:?} lasted {lasted:?}");
        }
    }

    #[test]
    fn a_wait_that_was_stopped_has_its_time_when_it_goes_on() {
        let poison = poison();
        let limits = limits(Eagerness::Sleep, Duration::from_secs(60), &poison);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let stood_still =
            [0, 1, 2, 100, 101, 103].map(|seconds| limits.standstill(at(seconds)).as_secs());
        assert_eq!(stood_still, [0, 0, 0, 98, 98, 100]);
    }

    #[test]
    fn a_long_wait_is_worth_one_warning() {
        let poison = poison();
        let limits = limits(Eagerness::Sleep, Duration::from_secs(600), &poison);
        let warnings = [1, 59, 60, 61, 300].map(|seconds| {
            let waited = Duration::from_secs(seconds);
            limits.is_worth_a_warning(waited)
        });
        assert_eq!(warnings, [false, false, true, false, false]);
    }

    #[test]
    fn a_spinning_wait_sees_a_failure_at_once_and_the_deadline_soon() {
        let poison = poison();
        let limits = limits(Eagerness::Spin, Duration::ZERO, &poison);
        let mut backoff = limits.backoff();
        let looks = (0..=LOOKS_PER_READING)
            .take_while(|_| limits.pause(&mut backoff, false).is_ok())
            .count();
        assert!(looks < LOOKS_PER_READING as usize, "{looks} looks");
        poison.set(Failure::Peer { rank: Rank::new(1), cause: "it fell".to_owned() });
        assert!(matches!(limits.pause(&mut limits.backoff(), false), Err(Interrupt::Failed(_))));
    }
}
