//! What the clones of a membership share: its communicator, and how it waits and ends.

use bonfire_sys::lock::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::ProcessGroup;
use bonfire_cuda::nccl::NcclRank;
use bonfire_cuda::{Context, CudaError, Event, EventState, Span, Stream};

use crate::error::{CudaGroupError, Result};
use crate::life;
use crate::life::guard::Guard;
use crate::life::wait::{Wait, Waited};

pub(crate) struct Inner {
    pub(crate) group: ProcessGroup,
    pub(crate) context: Context,
    pub(crate) stream: Arc<Stream>,
    pub(crate) nothing: Span,
    pub(crate) shares_a_process: bool,
    pub(crate) timeout: Duration,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) guard: Option<Guard>,
}

pub(crate) struct State {
    pub(crate) member: Option<NcclRank>,
    pub(crate) done: Event,
    pub(crate) last: String,
    pub(crate) retired: Vec<Span>,
}

/// How often a rank asks NCCL how far it is, once it takes long.
const LOOK: Duration = Duration::from_micros(200);

/// How long the news of a rank's death may take from one rank to another.
const NEWS: Duration = Duration::from_secs(2);

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
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn local<T>(&self, result: Result<T, CudaError>) -> Result<T> {
        life::local(&self.group, result)
    }

    pub(crate) fn wait(&self) -> Wait<'_> {
        Wait { group: &self.group, timeout: self.timeout }
    }

    pub(crate) fn wait_idle(&self, state: &mut State) -> Result<()> {
        self.local(self.stream.record(&state.done))?;
        let State { member, done, .. } = state;
        let mut health = Health::default();
        let waited = self.wait().until_done(|until| {
            let reached = done.wait_until(until)?;
            let Some(member) = member else {
                return Ok(reached);
            };
            health.after(member.state().map(|_| reached))
        });
        self.finish(state, waited)
    }

    /// What a wait means for the group. One that has failed gives up its communicator: what waits on the
    /// device for other ranks is freed.
    pub(crate) fn finish(
        &self,
        state: &mut State,
        waited: Result<Waited, CudaError>,
    ) -> Result<()> {
        let error = match self.local(waited) {
            Ok(Waited::Done) => return Ok(()),
            Err(error) => error,
            Ok(Waited::Failed(failure)) => failure.into(),
            Ok(Waited::TimedOut(elapsed)) => {
                life::time_out(&self.group, Vec::new(), state.last.clone(), elapsed)
            }
        };
        state.member = None;
        Err(error)
    }

    pub(crate) fn over(&self) -> CudaGroupError {
        match self.group.failure() {
            Some(failure) => failure.into(),
            None => CudaGroupError::SetUp {
                rank: self.group.rank(),
                reason: "it has left the group".to_owned(),
            },
        }
    }
}

/// What the guard of a rank does: what waits on the device of one whose group has failed is freed.
pub(crate) fn leave_if_failed(group: &ProcessGroup, state: &Mutex<State>) {
    if group.failure().is_some()
        // A busy rank looks itself whenever it waits.
        && let Some(mut state) = state.try_lock()
    {
        state.member = None;
    }
}

/// What NCCL says of itself while a device is waited for. A link that breaks it knows of, and the device does
/// not: that waits for ever.
#[derive(Default)]
struct Health {
    /// The first thing that went wrong, and when.
    wrong: Option<(Instant, CudaError)>,
}

impl Health {
    /// Where the device is, or what NCCL has to say: when the group has had time to fail, because a rank that
    /// dies breaks links as well, and the group knows which rank that was.
    fn after(&mut self, look: Result<EventState, CudaError>) -> Result<EventState, CudaError> {
        match (&self.wrong, look) {
            (Some((since, error)), _) if since.elapsed() >= NEWS => Err(error.clone()),
            (None, Ok(reached)) => Ok(reached),
            (None, Err(error)) => {
                self.wrong = Some((Instant::now(), error));
                Ok(EventState::Pending)
            }
            (Some(_), _) => {
                thread::sleep(LOOK);
                Ok(EventState::Pending)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.guard = None;
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
pub(crate) fn settle(wait: &Wait<'_>, member: &mut NcclRank) -> Result<Waited, CudaError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> CudaError {
        CudaError::NoNccl { reason: "a cable".to_owned() }
    }

    #[test]
    fn a_device_is_where_it_says_while_nccl_is_well() {
        let mut health = Health::default();
        for state in [EventState::Pending, EventState::Done] {
            assert_eq!(health.after(Ok(state)).unwrap(), state);
        }
    }

    #[test]
    fn what_is_done_after_a_link_broke_is_not_trusted() {
        let mut health = Health::default();
        for look in [Err(broken()), Ok(EventState::Done)] {
            assert_eq!(health.after(look).unwrap(), EventState::Pending);
        }
    }

    #[test]
    fn what_nccl_says_ends_the_wait_unless_the_group_fails_before() {
        let mut health = Health { wrong: Some((Instant::now() - NEWS, broken())) };
        let error = health.after(Ok(EventState::Pending)).unwrap_err();
        assert!(error.to_string().contains("a cable"), "{error}");
    }
}
