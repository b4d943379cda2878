//! A queue between threads of a process.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::{Condvar, Mutex, MutexGuard};

#[derive(Debug)]
struct Queue<T> {
    waiting: Mutex<(VecDeque<T>, Ends)>,
    changed: Condvar,
    bound: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    senders: usize,
    has_receiver: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, Ends)> {
        self.waiting.lock()
    }
}

pub struct SyncSender<T>(Arc<Queue<T>>);

#[derive(Debug)]
pub struct Receiver<T>(Arc<Queue<T>>);

pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let ends = Ends { senders: 1, has_receiver: true };
    let queue = Arc::new(Queue {
        waiting: Mutex::new((VecDeque::new(), ends)),
        changed: Condvar::new(),
        bound,
    });
    (SyncSender(Arc::clone(&queue)), Receiver(queue))
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SyncSender")
    }
}

impl<T> SyncSender<T> {
    /// Sends a value, once there is room.
    ///
    /// # Errors
    /// The value, if nobody will take it.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut queue = self.0.lock();
        while queue.1.has_receiver && queue.0.len() >= self.0.bound {
            queue = self.0.changed.wait(queue);
        }
        if !queue.1.has_receiver {
            return Err(value);
        }
        queue.0.push_back(value);
        drop(queue);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Drop for SyncSender<T> {
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
                drop(queue);
                self.0.changed.notify_all();
                return Some(value);
            }
            if queue.1.senders == 0 {
                return None;
            }
            queue = self.0.changed.wait(queue);
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
        self.0.changed.notify_all();
        // Not under the lock: a value may have something to say when it goes.
        drop(left);
    }
}
