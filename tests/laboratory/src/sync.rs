//! Waiting for other threads of a process.

mod channel;

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use crate::simulation::place::{Look, here, try_here};
use crate::task::Key;

pub use channel::{Receiver, SyncSender, sync_channel};

#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    held: Option<std::sync::MutexGuard<'a, T>>,
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits for the lock. A panic of another thread does not spoil it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(place) = try_here() {
            place.give_way();
            return place.wait_to_the_end(|_| match self.0.try_lock() {
                Ok(held) => Look::Done(self.guard(held)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    Look::Done(self.guard(poisoned.into_inner()))
                }
                Err(TryLockError::WouldBlock) => Look::Wait(vec![self.key()]),
            });
        }
        self.guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn guard<'a>(&'a self, held: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { held: Some(held), mutex: self }
    }

    fn key(&self) -> Key {
        Key::Address(std::ptr::from_ref(self).addr())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("it is held until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("it is held until it is dropped")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.held = None;
        if let Some(place) = try_here() {
            place.lock().wake(self.mutex.key());
        }
    }
}

/// Wakes those who wait for a change of what a lock guards.
#[derive(Debug, Default)]
pub struct Condvar {
    /// So that each lies at a place of its own.
    _room: u8,
}

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn notify_all(&self) {
        if let Some(place) = try_here() {
            place.lock().wake(self.key());
        }
    }

    /// Lets go of the lock until somebody wakes this thread.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let mutex = guard.mutex;
        self.sleep(guard, None);
        mutex.lock()
    }

    /// The same, for `span` at most.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        span: Duration,
    ) -> MutexGuard<'a, T> {
        let mutex = guard.mutex;
        self.sleep(guard, Some(span));
        mutex.lock()
    }

    /// Sleeps until somebody wakes it, or for `span`. Nobody comes between the end of the lock and the sleep, for only
    /// this thread runs.
    fn sleep<T>(&self, guard: MutexGuard<'_, T>, span: Option<Duration>) {
        let mut guard = Some(guard);
        let place = here();
        let _ = place.wait(span, |state| match guard.take() {
            Some(mut guard) => {
                let key = guard.mutex.key();
                guard.held = None;
                // Its drop would ask for the state that this closure has.
                std::mem::forget(guard);
                state.wake(key);
                Look::Wait(vec![self.key()])
            }
            None => Look::Done(()),
        });
    }

    fn key(&self) -> Key {
        Key::Address(std::ptr::from_ref(self).addr())
    }
}

/// Lets threads through one at a time, in the order of their tickets.
#[derive(Debug, Default)]
pub struct Turnstile {
    /// The next ticket, and the one whose turn it is.
    tickets: Mutex<(u64, u64)>,
    moved: Condvar,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "every later ticket waits for this one's turn"]
pub struct Ticket(u64);

/// The right to continue; passes to the next ticket when dropped.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    pub fn issue(&self) -> Ticket {
        let mut tickets = self.tickets();
        tickets.0 += 1;
        Ticket(tickets.0 - 1)
    }

    pub fn enter(&self, Ticket(ticket): Ticket) -> Turn<'_> {
        let mut tickets = self.tickets();
        while tickets.1 != ticket {
            tickets = self.moved.wait(tickets);
        }
        Turn(self)
    }

    pub fn is_idle(&self) -> bool {
        let tickets = self.tickets();
        tickets.0 == tickets.1
    }

    fn tickets(&self) -> MutexGuard<'_, (u64, u64)> {
        self.tickets.lock()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.tickets().1 += 1;
        self.0.moved.notify_all();
    }
}
