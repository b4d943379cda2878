//! The handle of an operation that runs in the background.

use std::sync::Arc;
use std::time::Duration;

use bonfire_plan::Rank;

use crate::CollectiveError;
use crate::rendezvous::group_error::Result;
use bonfire_connect::platform::sync::{Condvar, Mutex};

/// A pending operation, which owns its buffer until it is done.
///
/// Dropping it does not cancel the operation: the other ranks rely on it.
#[must_use = "the buffer and the error come back through wait()"]
#[derive(Debug)]
pub struct Work<T> {
    outcome: Arc<Outcome<T>>,
}

#[derive(Debug)]
struct Outcome<T> {
    result: Mutex<Option<Result<T>>>,
    done: Condvar,
}

/// The side that completes a [`Work`]. Dropped without completing, it completes with an error.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    outcome: Option<Arc<Outcome<T>>>,
    me: Rank,
}

impl<T> Work<T> {
    pub(crate) fn new(me: Rank) -> (Self, Completion<T>) {
        let outcome = Arc::new(Outcome { result: Mutex::new(None), done: Condvar::default() });
        (Self { outcome: Arc::clone(&outcome) }, Completion { outcome: Some(outcome), me })
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_completed(&self) -> bool {
        self.outcome.result.lock().is_some()
    }

    /// Waits until [`wait`](Self::wait) would return at once, but not much longer than `timeout`. Whether it
    /// would: for who has to look at something else meanwhile.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let result = self.outcome.result.lock();
        if result.is_some() {
            return true;
        }
        self.outcome.done.wait_timeout(result, timeout).is_some()
    }

    /// Waits for the result. Ends by the deadlines of this operation and of those issued before it.
    pub fn wait(self) -> Result<T> {
        let mut result = self.outcome.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self.outcome.done.wait(result);
        }
    }
}

impl<T> Completion<T> {
    pub(crate) fn complete(mut self, result: Result<T>) {
        self.fill(|| result);
    }

    fn fill(&mut self, result: impl FnOnce() -> Result<T>) {
        if let Some(outcome) = self.outcome.take() {
            let mut place = outcome.result.lock();
            *place = Some(result());
            outcome.done.notify_all();
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let rank = self.me;
        self.fill(|| {
            let cause = "the group was closed before the operation ran".to_owned();
            Err(CollectiveError::PeerFailed { rank, cause })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_completion_ends_the_wait_with_an_error() {
        let (work, completion) = Work::<()>::new(Rank::new(3));
        assert!(!work.is_completed());
        drop(completion);
        assert!(work.is_completed());
        assert!(matches!(work.wait(), Err(CollectiveError::PeerFailed { .. })));
    }

    #[test]
    fn the_result_arrives_from_another_thread() {
        let (work, completion) = Work::new(Rank::new(0));
        assert!(!work.wait_for(Duration::from_millis(1)));
        let thread = std::thread::spawn(move || completion.complete(Ok(vec![1, 2])));
        while !work.wait_for(Duration::from_millis(1)) {}
        assert_eq!(work.wait().unwrap(), [1, 2]);
        thread.join().unwrap();
    }
}
