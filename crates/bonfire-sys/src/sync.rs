//! Atomics, locks and the futex, from the standard library and the kernel, or from the model checker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bonfire-sys --lib --release loom` explores all
//! interleavings of the tests named so.

#[cfg(not(loom))]
pub(crate) use kernel::*;
#[cfg(loom)]
pub(crate) use model::*;

#[cfg(not(loom))]
mod kernel {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use rustix::thread::futex;
    use rustix::time::Timespec;

    /// The kernel keeps the queue of sleepers by the address of the word; nothing is stored here.
    #[derive(Debug, Default)]
    pub(crate) struct Futex;

    impl Futex {
        /// Sleeps while `word` is `expected`, at most for `slice`; may end early.
        pub(crate) fn wait(&self, word: &AtomicU32, expected: u32, slice: Duration) {
            let slice = Timespec {
                tv_sec: i64::try_from(slice.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: slice.subsec_nanos().into(),
            };
            // Woken, value changed, timed out, interrupted: each means that the caller looks again.
            let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&slice));
        }

        /// Wakes all sleepers of `word`, in this process and in others.
        pub(crate) fn wake_all(&self, word: &AtomicU32) {
            // Waking does not fail for a valid address; a lost wake would cost one slice.
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

#[cfg(loom)]
mod model {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// As the kernel does it: the check of the word and the queueing are one step under a lock that
    /// a wake takes too. There is no timeout, so a lost wake is a deadlock that loom reports.
    #[derive(Debug, Default)]
    pub(crate) struct Futex {
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn wait(&self, word: &AtomicU32, expected: u32, _slice: Duration) {
            let queue = self.queue.lock().expect("no test panics inside");
            if word.load(Ordering::Relaxed) == expected {
                drop(self.woken.wait(queue).expect("no test panics inside"));
            }
        }

        pub(crate) fn wake_all(&self, _word: &AtomicU32) {
            let _queue = self.queue.lock().expect("no test panics inside");
            self.woken.notify_all();
        }
    }
}
