//! What the clones of a membership share: its communicator, and how it waits and ends.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bonfire_sys::cuda::nccl::NcclRank;
use bonfire_sys::cuda::{Context, CudaError, Event, EventState, Span, Stream};

use crate::ProcessGroup;
use crate::cuda::CudaGroupError;
use crate::cuda::wait::{Wait, Waited};

pub(super) struct Inner {
    pub(super) group: ProcessGroup,
    pub(super) context: Context,
    pub(super) stream: Arc<Stream>,
    /// A byte that is zero.
    pub(super) nothing: Span,
    pub(super) shares_a_context: bool,
    pub(super) timeout: Duration,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) member: Option<NcclRank>,
    pub(super) done: Event,
    pub(super) last: String,
    pub(super) retired: Vec<Span>,
}

/// How often a rank asks NCCL how far it is, once it takes long.
const LOOK: Duration = Duration::from_micros(200);

/// How long it asks without a pause: ranks that are connected queue an operation in less, and who computes
/// behind it should not sleep.
const EAGER: Duration = Duration::from_micros(50);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        write!(f, "NcclGroup(rank {rank} of {world_size})")
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A failure of this rank's device is the failure of all ranks.
    pub(super) fn local<T>(&self, result: Result<T, CudaError>) -> Result<T, CudaGroupError> {
        result.map_err(|source| {
            let rank = self.group.rank();
            self.group.abort(&source.to_string());
            CudaGroupError::Device { rank, source }
        })
    }

    pub(super) fn wait(&self) -> Wait<'_> {
        Wait {
            group: &self.group,
            timeout: self.timeout,
        }
    }

    pub(super) fn wait_idle(&self, state: &mut State) -> Result<(), CudaGroupError> {
        self.local(self.stream.record(&state.done))?;
        let waited = self.wait().until_done(|until| state.done.wait_until(until));
        let waited = self.local(waited)?;
        self.finish(state, waited)
    }

    /// What a wait means for the group. One that has failed gives up its communicator: what waits on the
    /// device for other ranks is freed.
    pub(super) fn finish(&self, state: &mut State, waited: Waited) -> Result<(), CudaGroupError> {
        let error = match waited {
            Waited::Done => return Ok(()),
            Waited::Failed(failure) => failure.into(),
            Waited::TimedOut(elapsed) => {
                let error = CudaGroupError::Timeout {
                    rank: self.group.rank(),
                    waited_for: Vec::new(),
                    operation: state.last.clone(),
                    elapsed_ms: elapsed.as_millis() as u64,
                };
                self.group.abort(&error.to_string());
                error
            }
        };
        state.member = None;
        Err(error)
    }

    /// The failure that ended the group.
    pub(super) fn over(&self) -> CudaGroupError {
        match self.group.failure() {
            Some(failure) => failure.into(),
            None => CudaGroupError::SetUp {
                rank: self.group.rank(),
                reason: "it has left the group".to_owned(),
            },
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.state();
        // Nobody gives up a communicator that another rank still works with.
        let rested = self.wait_idle(&mut state);
        if rested.is_ok() {
            let _ = self.group.barrier();
        }
        state.member = None;
        let retired = std::mem::take(&mut state.retired);
        drop(state);
        drop(retired);
    }
}

/// Waits until NCCL has queued what was begun.
pub(super) fn settle(wait: &Wait<'_>, member: &mut NcclRank) -> Result<Waited, CudaError> {
    let begun = Instant::now();
    wait.until_done(|until| {
        let state = member.state()?;
        if state == EventState::Pending {
            let now = Instant::now();
            if now.duration_since(begun) < EAGER {
                thread::yield_now();
            } else {
                thread::sleep(until.saturating_duration_since(now).min(LOOK));
            }
        }
        Ok(state)
    })
}
