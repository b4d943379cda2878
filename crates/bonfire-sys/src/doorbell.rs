//! A counter that one side advances and another side, possibly in another process, sleeps on.
//!
//! The sleeping side registers itself in `sleepers` before it checks the counter for the last time;
//! the advancing side bumps the counter before it looks at `sleepers`. Both sides put a
//! sequentially consistent fence between their write and their read (Dekker's pattern), so at least
//! one of them sees the other: either the sleeper finds the new count, or the ringer finds the
//! sleeper and wakes it. The kernel closes the remaining gap, because a futex wait returns at once
//! when the word no longer holds the expected value.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// A monotonic event counter in shared memory. All zero bytes are a valid, fresh doorbell.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Doorbell {
    count: AtomicU32,
    sleepers: AtomicU32,
}

const _: () = assert!(size_of::<Doorbell>() == 64);
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
            self.wake();
        }
    }

    /// Wakes the sleepers without counting an event, so that they look at their other conditions.
    pub fn wake(&self) {
        // Waking never fails for a valid address; a wake that is lost costs one wait slice.
        let _ = futex::wake(&self.count, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the count differs from `seen`, somebody wakes this doorbell, or `slice` is over,
    /// whichever comes first. May return early for no reason; callers look again.
    pub fn sleep_past(&self, seen: u32, slice: Duration) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == seen {
            let slice = Timespec {
                tv_sec: i64::try_from(slice.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: slice.subsec_nanos().into(),
            };
            // Every outcome (woken, value changed, timed out, interrupted) means: look again.
            let _ = futex::wait(&self.count, futex::Flags::empty(), seen, Some(&slice));
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
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
