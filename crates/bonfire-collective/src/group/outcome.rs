//! Runs the operations of a group, and ends it on all ranks when one fails.

use std::time::Duration;

use bonfire_plan::Rank;
use bytemuck::Pod;

use super::Core;
use crate::exec::executor::{Memory, Request, RunError};
use crate::health::failure::Failure;
use crate::rendezvous::group_error::Result;
use crate::{CollectiveError, Element};
use bonfire_connect::platform::{clock, thread};

/// How long the reports of other ranks may take. They come within milliseconds, but not from a process
/// that is stopped.
const REPORTS_TIMEOUT: Duration = Duration::from_millis(500);

impl Core {
    pub(super) fn is_in_background(&self) -> bool {
        self.communicator.get() == Some(&std::thread::current().id())
    }

    pub(super) fn run<T: Element>(&self, request: &Request, memory: Memory<'_, T>) -> Result<()> {
        let mut executor = self.executor.lock();
        match executor.run(request, memory, &self.poison) {
            Ok(()) => Ok(()),
            Err(RunError::Usage(error)) => {
                // The others must not wait for it.
                let (rank, cause) = (self.me, error.to_string());
                self.fail(Failure::Peer { rank, cause });
                Err(error.into())
            }
            Err(RunError::Failed(failure)) => Err(self.end(failure)),
        }
    }

    /// As [`fail`](Self::fail); the error that callers see from now on.
    pub(super) fn end(&self, failure: Failure) -> CollectiveError {
        self.fail(failure);
        let first = self.poison.failure();
        self.explain(first.expect("fail() recorded one at the latest"))
    }

    pub(super) fn explain(&self, mut failure: Failure) -> CollectiveError {
        if let Failure::Timeout(timeout) = &mut failure {
            let reports = self.poison.reports();
            timeout.verdict = reports.verdict(timeout, self.world_size, || self.await_reports());
        }
        if let Failure::Mismatch(mismatch) = &mut failure {
            let reports = self.poison.reports();
            reports.name_calls(mismatch, || self.await_reports());
        }
        let error = self.roster.explain(failure);
        self.poison.reports().write_flight_records(&error.to_string());
        error
    }

    /// Gives the other processes time to say what they were doing.
    fn await_reports(&self) {
        let started = clock::now();
        while clock::since(started) < REPORTS_TIMEOUT {
            let reports = self.poison.reports().all();
            let silent =
                |rank: &Rank| !reports.contains_key(rank) && !self.poison.has_departed(*rank);
            if !self.world_size.ranks().any(|rank| silent(&rank)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the group because of what this rank's caller did: the others must not wait for it.
    pub(super) fn refuse(&self, cause: impl Into<String>) -> CollectiveError {
        let (rank, cause) = (self.me, cause.into());
        self.end(Failure::Peer { rank, cause })
    }

    pub(super) fn with_scratch<T: Element + Pod, R>(
        &self,
        len: usize,
        body: impl FnOnce(&mut [T]) -> Result<R>,
    ) -> Result<R> {
        body(self.scratch.lock().elements(len))
    }

    /// Makes this the failure of the group, on all ranks, unless it has failed already.
    pub(super) fn fail(&self, failure: Failure) {
        if self.poison.set(failure)
            && let Some(failure) = self.poison.failure()
            && let Some(control) = self.control.lock().as_ref()
        {
            control.broadcast(&failure, self.poison.reports());
        }
    }
}
