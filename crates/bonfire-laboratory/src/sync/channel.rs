//! A queue between threads of a process.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};

use super::{Condvar, Mutex, MutexGuard};

/// What a channel holds.
#[derive(Debug)]
struct Queue<T> {
    waiting: Mutex<(VecDeque<T>, Ends)>,
    changed: Condvar,
}

/// Which ends of a channel are there.
#[derive(Clone, Copy, Debug)]
struct Ends {
    senders: usize,
    has_receiver: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, Ends)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a channel that takes values.
pub struct Sender<T>(Arc<Queue<T>>);

/// The end of a channel that gives values.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Queue<T>>);

/// A channel without a bound.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let ends = Ends {
        senders: 1,
        has_receiver: true,
    };
    let queue = Arc::new(Queue {
        waiting: Mutex::new((VecDeque::new(), ends)),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Sender")
    }
}

impl<T> Sender<T> {
    /// Sends a value.
    ///
    /// # Errors
    /// The value, if nobody will take it.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut queue = self.0.lock();
        if !queue.1.has_receiver {
            return Err(value);
        }
        queue.0.push_back(value);
        drop(queue);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().1.senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;

    /// Waits for the next value; nothing once all senders are gone.
    fn next(&mut self) -> Option<T> {
        let mut queue = self.0.lock();
        loop {
            if let Some(value) = queue.0.pop_front() {
                return Some(value);
            }
            if queue.1.senders == 0 {
                return None;
            }
            let woken = self.0.changed.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.0.lock();
            queue.1.has_receiver = false;
            std::mem::take(&mut queue.0)
        };
        // Not under the lock: a value may have something to say when it goes.
        drop(left);
    }
}
