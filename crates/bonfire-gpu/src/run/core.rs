//! What a rank needs to wait, to fail and to come to rest, whatever is queued.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, ProcessGroup};
use bonfire_cuda::{Context, CudaError, Event, EventState, PinnedRegion, Stream};
use bonfire_kernels::launch::flags::FlagPage;

use crate::device::kernels::KernelKey;
use crate::device::sync::{Missing, is_marked};
use crate::error::{self, CudaGroupError, Result};
use crate::life::wait::{Wait, Waited};
use crate::life::{self, agree};
use crate::run::State;
use crate::run::engine::Need;

/// How long the news of a failure may take from one rank of a host to another.
const NEWS: Duration = Duration::from_secs(5);

/// How long a rank whose group has failed may take until its device is done.
const FREE_MAX: Duration = Duration::from_secs(60);

/// How long a rank that was freed is waited for before it is freed again.
const FREE_AGAIN: Duration = Duration::from_millis(10);

/// The part of a membership that no operation changes.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) group: ProcessGroup,
    pub(crate) context: Context,
    /// Waits for nothing: frees the others.
    pub(crate) control: Stream,
    /// For the flags of one rank, to see who is missing.
    pub(crate) page_copy: Arc<PinnedRegion>,
    pub(crate) copied: Event,
    /// For the marks of ranks that were freed, which may still be on their way when it is seen who is missing.
    pub(crate) marks: Arc<PinnedRegion>,
    pub(crate) timeout: Duration,
}

impl Core {
    pub(crate) fn local<T>(&self, result: Result<T, CudaError>) -> Result<T> {
        life::local(&self.group, result)
    }

    /// Loads kernels with all ranks. Loading may wait for the device, so no rank may be waiting there for
    /// another: all come to rest first.
    pub(crate) fn load(&self, state: &mut State, need: Need, keys: &[KernelKey]) -> Result<()> {
        self.quiesce(state)?;
        let loaded = keys.iter().try_for_each(|key| state.kernels.load(key));
        agree(&self.group, loaded)?;
        state.ready.insert(need);
        Ok(())
    }

    /// Returns once no rank has anything queued.
    pub(crate) fn quiesce(&self, state: &mut State) -> Result<()> {
        self.wait_idle(state)?;
        Ok(self.group.barrier()?)
    }

    pub(crate) fn wait_idle(&self, state: &mut State) -> Result<()> {
        let started = Instant::now();
        let has_marks = self.local(state.flags.copy_marks(&state.stream, &self.marks))?;
        self.local(state.stream.record(&state.done))?;
        let wait = Wait { group: &self.group, timeout: self.timeout };
        let waited = wait.until_done(|until| state.done.wait_until(until));
        match self.local(waited)? {
            Waited::Done if has_marks && is_marked(&self.marks) => {
                // Not done, but signalled by a rank that was freed, whose failure this one has yet to learn.
                match self.failure_until(Instant::now() + NEWS) {
                    Some(failure) => {
                        self.free(state);
                        Err(failure.into())
                    }
                    None => Err(self.time_out(state, started.elapsed())),
                }
            }
            Waited::Done => {
                state.has_queued = false;
                Ok(())
            }
            Waited::Failed(failure) => {
                self.free(state);
                Err(failure.into())
            }
            Waited::TimedOut(elapsed) => Err(self.time_out(state, elapsed)),
        }
    }

    /// Ends the group because of the ranks that are missing, unless another rank has ended it at the same time.
    pub(crate) fn time_out(&self, state: &mut State, elapsed: Duration) -> CudaGroupError {
        let waited_for = match self.missing(state) {
            Ok(Missing::Ranks(ranks)) => ranks,
            // That rank notified the group before it moved its words.
            Ok(Missing::GivenUp) => match self.failure_until(Instant::now() + NEWS) {
                Some(failure) => {
                    self.free(state);
                    return failure.into();
                }
                None => Vec::new(),
            },
            Err(_) => Vec::new(),
        };
        let error = life::time_out(&self.group, waited_for, state.last.to_string(), elapsed);
        self.free(state);
        error
    }

    /// The failure of the group, as soon as this rank learns of it.
    fn failure_until(&self, deadline: Instant) -> Option<CollectiveError> {
        const PAUSE: Duration = Duration::from_millis(1);
        loop {
            let failure = self.group.failure();
            if failure.is_some() || Instant::now() >= deadline {
                return failure;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Ends the group if ranks do not come that this one waits for on its device. Whether there are such.
    pub(crate) fn accuse(&self, state: &mut State, waited: Duration) -> bool {
        let is_somebody_missing = match self.missing(state) {
            Ok(Missing::Ranks(ranks)) => !ranks.is_empty(),
            Ok(Missing::GivenUp) => true,
            // The context is lost, which the next caller finds.
            Err(_) => false,
        };
        if is_somebody_missing {
            self.time_out(state, waited);
        }
        is_somebody_missing
    }

    /// Logs which ranks this one waits for on its device, if there are such.
    pub(crate) fn warn_of_wait(&self, state: &State, waited: Duration) {
        if let Ok(Missing::Ranks(missing)) = self.missing(state)
            && !missing.is_empty()
        {
            tracing::warn!(
                target: "bonfire",
                "rank {} waits on its device in {} for {:.1} s: {} has not entered it",
                self.group.rank(),
                state.last,
                waited.as_secs_f64(),
                error::ranks(&missing)
            );
        }
    }

    /// Who keeps the others waiting: read from the flags of all ranks, beside the stream that waits. Nothing
    /// is allocated or freed on the device here, since both may wait for that stream.
    fn missing(&self, state: &State) -> Result<Missing, CudaError> {
        let pages = state.flags.waiter().pages.iter();
        let words: Result<Vec<_>, CudaError> = pages.map(|page| self.words(page)).collect();
        Ok(state.flags.missing(&words?))
    }

    fn words(&self, page: &FlagPage) -> Result<Vec<u32>, CudaError> {
        self.control.copy_to_pinned(&self.page_copy, page.span())?;
        self.control.record(&self.copied)?;
        let _ = self.copied.wait_until(Instant::now() + Duration::from_secs(5))?;
        let words = self.page_copy.words().iter();
        Ok(words.map(|word| word.load(Ordering::Acquire)).collect())
    }

    /// Frees this rank's streams and kernels from whatever they wait for, and waits until they are done. The
    /// group has failed.
    pub(crate) fn free(&self, state: &mut State) {
        let deadline = Instant::now() + self.timeout.min(FREE_MAX);
        while Instant::now() < deadline && !self.free_once(state) {}
    }

    /// As [`free`](Self::free), which is needed again while others that still compute reach what they have queued: what
    /// they write sets back what was raised. Whether everything is done, soon after.
    pub(crate) fn free_once(&self, state: &mut State) -> bool {
        let freed = state.flags.release(&self.control);
        if freed.is_err() || state.stream.record(&state.done).is_err() {
            return true; // Of a context that is lost nothing waits.
        }
        let done = state.done.wait_until(Instant::now() + FREE_AGAIN);
        !matches!(done, Ok(EventState::Pending))
    }
}
