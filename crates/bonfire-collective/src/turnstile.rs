//! Runs the operations of a group in the order in which they were issued, from whatever thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tickets are handed out in issue order and served in ticket order.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    serving: u64,
    /// Threads that sleep; a wake is a system call, which most turns can do without.
    waiting: usize,
}

/// The right to run; passes to the next ticket when dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits until all earlier tickets are done. Each of them ends by its own deadline.
    pub(crate) fn enter(&self, ticket: u64) -> Turn<'_> {
        let mut state = self.state();
        while state.serving != ticket {
            assert!(state.serving < ticket, "ticket {ticket} was served already");
            state.waiting += 1;
            state = self
                .moved
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        drop(state);
        Turn(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.serving += 1;
        if state.waiting > 0 {
            self.0.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_ticket_order() {
        let turnstile = Turnstile::default();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for ticket in (0..20).rev() {
                let (turnstile, order) = (&turnstile, &order);
                scope.spawn(move || {
                    let _turn = turnstile.enter(ticket);
                    order.lock().unwrap().push(ticket);
                });
            }
        });
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
