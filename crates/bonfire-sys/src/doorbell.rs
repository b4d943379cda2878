//! A counter that one side advances and another side, possibly in another process, sleeps on.
//!
//! Count and sleepers are in one word, so all looks at them and changes to them have one order: a sleeper leaves its
//! mark and learns the count in one step; the ringing side counts and learns of the mark in one step. Either the
//! sleeper finds the new count, or the ringer finds the mark and wakes it. The kernel closes the remaining gap,
//! because a futex wait returns at once when the word no longer holds the expected value.

use std::time::Duration;

use crate::sync::{AtomicU32, Futex, Ordering};

/// A monotonic event counter in shared memory. All zero bytes are a valid, fresh doorbell.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    /// Bit 0: somebody may sleep. Above it: the count.
    word: AtomicU32,
    futex: Futex,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Doorbell>() == 64);
#[cfg(not(loom))]
const _: () = assert!(align_of::<Doorbell>() == 64);

const SLEEPER: u32 = 1;
const EVENT: u32 = 2;

impl Doorbell {
    /// Counts run from 0 to one less than this, and then from 0 again.
    pub(crate) const COUNTS: u32 = 1 << 31;

    /// The events so far, modulo [`COUNTS`](Self::COUNTS).
    ///
    /// Everything the ringing side wrote before its [`ring`](Self::ring) of that count is visible
    /// after this returns (acquire, pairs with the release in `ring`).
    pub(crate) fn count(&self) -> u32 {
        self.word.load(Ordering::Acquire) / EVENT
    }

    /// Counts one event and wakes the threads that sleep on this doorbell.
    ///
    /// Everything written before is visible to the side that reads the new count.
    pub(crate) fn ring(&self) {
        let before = self.word.fetch_add(EVENT, Ordering::Release);
        if before & SLEEPER != 0 {
            // A sleeper that comes now has seen the new count, and marks the word again if it sleeps.
            self.word.fetch_and(!SLEEPER, Ordering::Relaxed);
            self.futex.wake_all(&self.word);
        }
    }

    /// Sleeps until the count has passed `seen`, somebody wakes this doorbell, or `slice` is over,
    /// whichever comes first. May return early for no reason; callers look again.
    ///
    /// `seen` may be ahead of the count: who learns of an event in another way may be here before the
    /// other side has rung.
    pub(crate) fn sleep_past(&self, seen: u32, slice: Duration) {
        // Acquire, so that who returns because of an event finds what was written before it.
        let marked = self.word.fetch_or(SLEEPER, Ordering::Acquire) | SLEEPER;
        // Without the mark, as numbers of 32 bits: the sign says which is ahead.
        let ahead = (marked & !SLEEPER).wrapping_sub(seen.wrapping_mul(EVENT));
        if ahead.cast_signed() <= 0 {
            self.futex.wait(&self.word, marked, slice);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Miri runs a thousand times slower.
    const ROUNDS: u32 = if cfg!(miri) { 20 } else { 1000 };

    #[test]
    fn a_sleeper_wakes_at_the_ring_and_sees_what_was_written_before() {
        let bell = Arc::new(Doorbell::default());
        let data = Arc::new(AtomicU32::new(0));
        let (bell_there, data_there) = (Arc::clone(&bell), Arc::clone(&data));
        let ringer = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                data_there.store(round, Ordering::Relaxed);
                bell_there.ring();
                while data_there.load(Ordering::Relaxed) == round {
                    std::hint::spin_loop();
                }
            }
        });
        for round in 1..=ROUNDS {
            while bell.count() != round {
                bell.sleep_past(round - 1, Duration::from_secs(5));
            }
            assert_eq!(data.load(Ordering::Relaxed), round);
            data.store(0, Ordering::Relaxed);
        }
        ringer.join().unwrap();
    }

    #[test]
    fn sleeping_on_an_old_count_returns_at_once() {
        let bell = Doorbell::default();
        bell.ring();
        bell.sleep_past(0, Duration::from_secs(3600));
        assert_eq!(bell.count(), 1);
    }

    #[test]
    fn the_count_may_lag_behind_what_was_seen() {
        let bell = Arc::new(Doorbell::default());
        // A sleep may end early for no reason, but a wait of sleeps must not become a spin.
        let slice = Duration::from_millis(20);
        let started = std::time::Instant::now();
        let mut sleeps = 0;
        while started.elapsed() < slice {
            bell.sleep_past(1, slice);
            sleeps += 1;
        }
        assert!(sleeps < 100, "{sleeps} sleeps in {slice:?} are a spin");
        let there = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || (0..2).for_each(|_| there.ring()));
        while bell.count() != 2 {
            bell.sleep_past(1, Duration::from_secs(3600));
        }
        ringer.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    const FOREVER: Duration = Duration::MAX;

    /// Interleavings with up to three preemptions: enough for every known two-thread bug, and done in
    /// seconds (Musuvathi and Qadeer 2007).
    fn check(body: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    #[test]
    fn loom_no_wake_is_lost() {
        check(|| {
            let bell = Arc::new(Doorbell::default());
            let there = Arc::clone(&bell);
            let ringer = loom::thread::spawn(move || there.ring());
            while bell.count() == 0 {
                bell.sleep_past(0, FOREVER);
            }
            ringer.join().unwrap();
        });
    }

    /// The protocol of a ring with one slot: publish in the slot, ring for a sleeper, read, release, write again.
    #[test]
    fn loom_a_slot_has_one_owner_at_a_time() {
        struct Slot {
            holds: AtomicU32,
            published: Doorbell,
            released: Doorbell,
            bytes: UnsafeCell<u32>,
        }
        // SAFETY: the test is about just this: loom reports any access that is not ordered.
        unsafe impl Sync for Slot {}
        // SAFETY: as above.
        unsafe impl Send for Slot {}
        check(|| {
            let slot = Arc::new(Slot {
                holds: AtomicU32::new(0),
                published: Doorbell::default(),
                released: Doorbell::default(),
                bytes: UnsafeCell::new(0),
            });
            let there = Arc::clone(&slot);
            let producer = loom::thread::spawn(move || {
                for frame in 1..=2 {
                    while there.released.count() != frame - 1 {
                        there.released.sleep_past(frame - 2, FOREVER);
                    }
                    there.bytes.with_mut(|bytes| {
                        // SAFETY: the pointer is valid; loom checks that nobody else uses it now.
                        unsafe { *bytes = frame }
                    });
                    there.holds.store(frame, Ordering::Release);
                    there.published.ring();
                }
            });
            for frame in 1..=2 {
                while slot.holds.load(Ordering::Acquire) != frame {
                    slot.published.sleep_past(frame - 1, FOREVER);
                }
                // SAFETY: the pointer is valid; loom checks that nobody writes it now.
                let read = slot.bytes.with(|bytes| unsafe { *bytes });
                assert_eq!(read, frame);
                slot.released.ring();
            }
            producer.join().unwrap();
        });
    }
}
