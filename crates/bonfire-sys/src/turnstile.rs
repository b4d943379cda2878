//! Lets threads through one at a time, in the order in which they took their tickets.
//!
//! Most turns find nobody before them and nobody behind: those cost two atomic operations and no
//! lock. Whose turn it is and how many sleep are in one word, so all changes have one order: a thread
//! that must wait counts itself and learns whose turn it is in one step; a thread that leaves passes the
//! turn on and learns of the sleepers in one step. The sleeper holds the lock from its look until it
//! sleeps, and the waker takes it, so the wake cannot come in between.

use std::sync::PoisonError;

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering};

#[derive(Debug, Default)]
pub struct Turnstile {
    issued: AtomicU64,
    /// The ticket whose turn it is, times [`TURN`], plus the threads that sleep.
    state: AtomicU64,
    sleep: Mutex<()>,
    moved: Condvar,
}

/// There are always fewer sleepers than this. Turns are compared by the bits that fit above.
const TURN: u64 = 1 << 20;

/// A place in the order, to be used with the turnstile that issued it. One that is never used stops
/// everybody behind it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "every later ticket waits for this one's turn"]
pub struct Ticket(u64);

/// The right to continue; passes to the next ticket when dropped, also by a panic.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    pub fn issue(&self) -> Ticket {
        // Relaxed: turns are ordered by `state`.
        Ticket(self.issued.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until all earlier tickets are done; sees what they wrote.
    pub fn enter(&self, Ticket(ticket): Ticket) -> Turn<'_> {
        if !self.is_up(ticket) {
            self.sleep_until_up(ticket);
        }
        Turn(self)
    }

    /// Whether a ticket that is issued now will be up at once; by the time it is, that may have changed.
    pub fn is_idle(&self) -> bool {
        self.is_up(self.issued.load(Ordering::Relaxed))
    }

    fn is_up(&self, ticket: u64) -> bool {
        // Acquire pairs with the release in `drop`.
        let state = self.state.load(Ordering::Acquire);
        state & !(TURN - 1) == ticket.wrapping_mul(TURN)
    }

    #[cold]
    fn sleep_until_up(&self, ticket: u64) {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.fetch_add(1, Ordering::Relaxed);
        while !self.is_up(ticket) {
            let woken = self.moved.wait(sleep);
            sleep = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.state.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let turnstile = self.0;
        let before = turnstile.state.fetch_add(TURN, Ordering::Release);
        if !before.is_multiple_of(TURN) {
            let sleep = turnstile.sleep.lock();
            drop(sleep.unwrap_or_else(PoisonError::into_inner));
            turnstile.moved.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_ticket_order() {
        let turnstile = Turnstile::default();
        let order = Mutex::new(Vec::new());
        let mut tickets: Vec<Ticket> = (0..20).map(|_| turnstile.issue()).collect();
        std::thread::scope(|scope| {
            while let Some(ticket) = tickets.pop() {
                let (turnstile, order) = (&turnstile, &order);
                scope.spawn(move || {
                    let number = ticket.0;
                    let _turn = turnstile.enter(ticket);
                    order.lock().unwrap().push(number);
                });
            }
        });
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_turnstile_is_idle_unless_a_ticket_is_out() {
        let turnstile = Turnstile::default();
        assert!(turnstile.is_idle());
        let ticket = turnstile.issue();
        assert!(!turnstile.is_idle());
        let turn = turnstile.enter(ticket);
        assert!(!turnstile.is_idle());
        drop(turn);
        assert!(turnstile.is_idle());
    }

    #[test]
    fn turns_go_on_when_their_numbers_overflow() {
        let turnstile = Turnstile::default();
        let last = u64::MAX / TURN;
        turnstile.issued.store(last, Ordering::Relaxed);
        turnstile.state.store(last.wrapping_mul(TURN), Ordering::Relaxed);
        for _ in 0..3 {
            drop(turnstile.enter(turnstile.issue()));
        }
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let turnstile = Turnstile::default();
        let (first, second) = (turnstile.issue(), turnstile.issue());
        std::thread::scope(|scope| {
            let turnstile = &turnstile;
            let panicking = scope.spawn(move || {
                let _turn = turnstile.enter(first);
                panic!("on purpose");
            });
            assert!(panicking.join().is_err());
            drop(turnstile.enter(second));
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Shared {
        turnstile: Turnstile,
        turns: UnsafeCell<u64>,
    }
    // SAFETY: the test is about just this: loom reports any access that is not ordered.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    fn pass(shared: &Shared, ticket: Ticket) {
        let number = ticket.0;
        let _turn = shared.turnstile.enter(ticket);
        shared.turns.with_mut(|turns| {
            // SAFETY: the pointer is valid; loom checks that nobody else uses it now.
            let turns = unsafe { &mut *turns };
            assert_eq!(*turns, number, "a turn came out of order");
            *turns += 1;
        });
    }

    /// A lost wake is a deadlock, which loom reports; so is an unordered access.
    #[test]
    fn loom_turns_come_in_order_and_no_wake_is_lost() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared =
                Arc::new(Shared { turnstile: Turnstile::default(), turns: UnsafeCell::new(0) });
            let [first, second, third] = std::array::from_fn(|_| shared.turnstile.issue());
            let others = [third, second].map(|ticket| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || pass(&shared, ticket))
            });
            pass(&shared, first);
            for other in others {
                other.join().unwrap();
            }
        });
    }
}
