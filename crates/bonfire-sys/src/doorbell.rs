//! A counter that one side advances and another side, possibly in another process, sleeps on.
//!
//! The sleeping side registers itself in `sleepers` before it checks the counter for the last time;
//! the advancing side bumps the counter before it looks at `sleepers`. Both sides put a
//! sequentially consistent fence between their write and their read (Dekker's pattern), so at least
//! one of them sees the other: either the sleeper finds the new count, or the ringer finds the
//! sleeper and wakes it. The kernel closes the remaining gap, because a futex wait returns at once
//! when the word no longer holds the expected value.

use std::time::Duration;

use crate::sync::{AtomicU32, Futex, Ordering, fence};

/// A monotonic event counter in shared memory. All zero bytes are a valid, fresh doorbell.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Doorbell {
    count: AtomicU32,
    sleepers: AtomicU32,
    futex: Futex,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Doorbell>() == 64);
#[cfg(not(loom))]
const _: () = assert!(align_of::<Doorbell>() == 64);

impl Doorbell {
    /// The events so far, modulo 2^32.
    ///
    /// Everything the ringing side wrote before its [`ring`](Self::ring) of that count is visible
    /// after this returns (acquire, pairs with the release in `ring`).
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts one event and wakes whoever sleeps on this doorbell.
    ///
    /// Everything written before is visible to the side that reads the new count. Only one side may
    /// ring a doorbell.
    pub fn ring(&self) {
        self.count.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.futex.wake_all(&self.count);
        }
    }

    /// Sleeps until the count differs from `seen`, somebody wakes this doorbell, or `slice` is over,
    /// whichever comes first. May return early for no reason; callers look again.
    pub fn sleep_past(&self, seen: u32, slice: Duration) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == seen {
            self.futex.wait(&self.count, seen, slice);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_sleeper_wakes_at_the_ring_and_sees_what_was_written_before() {
        let bell = Arc::new(Doorbell::default());
        let data = Arc::new(AtomicU32::new(0));
        let (bell_there, data_there) = (Arc::clone(&bell), Arc::clone(&data));
        let ringer = std::thread::spawn(move || {
            for round in 1..=1000 {
                data_there.store(round, Ordering::Relaxed);
                bell_there.ring();
                while data_there.load(Ordering::Relaxed) == round {
                    std::hint::spin_loop();
                }
            }
        });
        for round in 1..=1000 {
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
}

/// The interleavings of two threads.
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

    /// The protocol of a ring with one slot: publish, read, release, write again.
    #[test]
    fn loom_a_slot_has_one_owner_at_a_time() {
        struct Slot {
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
                    there.published.ring();
                }
            });
            for frame in 1..=2 {
                while slot.published.count() != frame {
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
