//! Work in the background, which gives its buffer back.
//!
//! It is done one after the other in the order of the calls, on one thread of the group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Job, ProcessGroup};
use crate::group::work::{Completion, Work};
use crate::rendezvous::group_error::Result;

impl ProcessGroup {
    /// Does `body` with `buffer` in the background, after all operations issued so far and before all that
    /// are issued later, as if it were one of them; the buffer comes back with the result.
    ///
    /// `body` calls operations on the handle that it is given. They are known by the place of this call.
    /// If it panics, that is a failure of this rank on all others.
    ///
    /// ```
    /// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
    /// use bonfire::collective::{GroupOptions, ProcessGroup, ReduceOp, WorldSize};
    ///
    /// # let one = WorldSize::new(1)?;
    /// # let group = ProcessGroup::local(one, GroupOptions::default())?.remove(0);
    /// let work = group.background(vec![1.0, 2.0], |group, data| {
    ///     group.all_reduce(data, ReduceOp::Mean)
    /// });
    /// // The program computes something else, and then:
    /// let mean = work.wait()?;
    /// # assert_eq!(mean, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn background<B: Send + 'static>(
        &self,
        mut buffer: B,
        body: impl FnOnce(&Self, &mut B) -> Result<()> + Send + 'static,
    ) -> Work<B> {
        let (work, completion): (Work<B>, Completion<B>) = Work::new(self.rank());
        let group = Self {
            core: Arc::clone(&self.core),
            member: None,
            begun: Some(self.entered()),
            ..*self
        };
        let run = move || {
            let body = || body(&group, &mut buffer);
            let result = catch_unwind(AssertUnwindSafe(body))
                .unwrap_or_else(|_| Err(group.core.refuse("it panicked in the background")));
            completion.complete(result.map(|()| buffer));
        };
        match &self.member {
            Some(member) if !self.core.is_in_background() => {
                let jobs = member.jobs.lock();
                let jobs = jobs.as_ref().expect("jobs end with the last clone");
                // Under the lock, so that jobs are passed on in the order of their tickets. The thread
                // that takes them ends after the last one.
                let _ = jobs.send(Job {
                    ticket: self.core.turnstile.issue(),
                    enqueued: self.core.recorder.enqueue(),
                    run: Box::new(run),
                });
            }
            // Work within work is done at once: it is its turn already.
            _ => run(),
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{GroupOptions, ProcessGroup, ReduceOp, WorldSize};

    /// Panics when it is dropped, once.
    struct Fragile;

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_buffer_that_panics_when_dropped_keeps_nobody_behind_it_waiting() {
        let one = WorldSize::new(1).unwrap();
        let group = ProcessGroup::local(one, GroupOptions::default()).unwrap().remove(0);
        // The operation fails, so the buffer does not come back.
        let failing = group.background(Fragile, |group, _| {
            group.abort("it fell");
            group.all_reduce(&mut [1.0], ReduceOp::Sum)
        });
        let behind =
            group.background(vec![1.0], |group, data| group.all_reduce(data, ReduceOp::Sum));
        assert!(behind.wait_for(Duration::from_secs(60)), "it waits");
        behind.wait().unwrap_err();
        failing.wait().map(std::mem::forget).unwrap_err();
    }
}
