//! Runs the operations of a group in the order in which they were issued, from whatever thread.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tickets are handed out in issue order and served in ticket order.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    serving: Mutex<u64>,
    moved: Condvar,
}

/// The right to run; passes to the next ticket when dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits until all earlier tickets are done. Each of them ends by its own deadline.
    pub(crate) fn enter(&self, ticket: u64) -> Turn<'_> {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        while *serving != ticket {
            assert!(*serving < ticket, "ticket {ticket} was served already");
            serving = self
                .moved
                .wait(serving)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self
            .0
            .serving
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.moved.notify_all();
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
