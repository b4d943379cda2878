//! The right of peers to be inside a buffer, which its owner can take back.
//!
//! One word: whether peers may enter, and how many are inside. The owner opens it, peers enter and
//! leave, the owner shuts it and waits until it is empty; then the buffer is the owner's alone.

use crate::sync::{AtomicU32, Ordering};

/// Set in a lease while the window is open; the bits below count the peers inside.
const OPEN: u32 = 1 << 31;

/// Who may touch a buffer from outside, and how many do.
#[derive(Debug, Default)]
pub(crate) struct Lease(AtomicU32);

impl Lease {
    /// Lets peers in. Everything written before is visible to a peer that enters (release; pairs
    /// with the acquire in `enter`).
    pub(crate) fn open(&self) {
        self.0.store(OPEN, Ordering::Release);
    }

    /// True if the window is open; then it stays usable until [`leave`](Self::leave).
    pub(crate) fn enter(&self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen & OPEN != 0 {
            let (lease, entered) = (&self.0, seen + 1);
            match lease.compare_exchange_weak(seen, entered, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Ends a visit. What was written is visible to the owner once it has closed (release; pairs with
    /// the acquire in `is_empty`).
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn shut(&self) {
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Whether all visits have ended; only meaningful after [`shut`](Self::shut).
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Buffer {
        lease: Lease,
        bytes: [UnsafeCell<u32>; 2],
    }
    // SAFETY: the test is about just this: loom reports any access that is not ordered.
    unsafe impl Sync for Buffer {}
    // SAFETY: as above.
    unsafe impl Send for Buffer {}

    fn set(cell: &UnsafeCell<u32>, value: u32) {
        cell.with_mut(|bytes| {
            // SAFETY: the pointer is valid; loom checks that nobody else uses it now.
            unsafe { *bytes = value }
        });
    }

    fn get(cell: &UnsafeCell<u32>) -> u32 {
        // SAFETY: the pointer is valid; loom checks that nobody writes it now.
        cell.with(|bytes| unsafe { *bytes })
    }

    /// Two visitors write an element each; the owner writes before and reads after.
    #[test]
    fn loom_nobody_is_inside_after_the_close() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let buffer = Arc::new(Buffer {
                lease: Lease::default(),
                bytes: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let visitors: Vec<_> = (0..2)
                .map(|index| {
                    let buffer = Arc::clone(&buffer);
                    loom::thread::spawn(move || {
                        let entered = buffer.lease.enter();
                        if entered {
                            assert_eq!(get(&buffer.bytes[index]), 7, "the owner's write is seen");
                            set(&buffer.bytes[index], 8);
                            buffer.lease.leave();
                        }
                        entered
                    })
                })
                .collect();
            buffer.bytes.iter().for_each(|cell| set(cell, 7));
            buffer.lease.open();
            loom::thread::yield_now();
            buffer.lease.shut();
            while !buffer.lease.is_empty() {
                loom::thread::yield_now();
            }
            let mut seen = [0; 2];
            for index in 0..2 {
                seen[index] = get(&buffer.bytes[index]);
                set(&buffer.bytes[index], 9);
            }
            for (index, visitor) in visitors.into_iter().enumerate() {
                let expected = if visitor.join().unwrap() { 8 } else { 7 };
                assert_eq!(seen[index], expected, "a visit ended before the close did");
            }
        });
    }
}
