//! What the guard of a group's rank looks at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bonfire_cuda::{Event, EventState};
use bonfire_kernels::launch::flags::AbortFlag;
use bonfire_sys::lock::Mutex;

use crate::run::State;
use crate::run::core::Core;

/// How long a device waits before the log names the ranks that it waits for.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// How far the rank's device is, seen from beside.
pub(crate) struct Watch {
    core: Arc<Core>,
    state: Arc<Mutex<State>>,
    abort: AbortFlag,
    mark: Event,
    /// When the event was recorded that is waited for, behind everything queued by then.
    marked: Option<Instant>,
    has_warned: bool,
}

impl Watch {
    /// Of a rank that has queued nothing yet.
    pub(crate) fn new(
        core: &Arc<Core>,
        state: &Arc<Mutex<State>>,
        abort: AbortFlag,
        mark: Event,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            state: Arc::clone(state),
            abort,
            mark,
            marked: None,
            has_warned: false,
        }
    }

    /// Frees the device if the group has failed, or fails it if another rank has let this one wait too long.
    pub(crate) fn look(&mut self) {
        let has_failed = self.core.group.failure().is_some();
        if has_failed {
            // Before all else: it needs neither a lock nor the driver.
            self.abort.raise();
        }
        let state = Arc::clone(&self.state);
        // A busy rank looks itself whenever it waits.
        let Some(mut state) = state.try_lock() else {
            return;
        };
        if has_failed {
            self.core.free_once(&mut state);
        } else {
            self.time(&mut state);
        }
    }

    fn time(&mut self, state: &mut State) {
        let Some(marked) = self.marked else {
            if state.has_queued && state.stream.record(&self.mark).is_ok() {
                state.has_queued = false;
                self.marked = Some(Instant::now());
            }
            return;
        };
        let waited: Duration = marked.elapsed();
        let is_pending = matches!(self.mark.state(), Ok(EventState::Pending));
        if is_pending && waited >= WARN_AFTER && !self.has_warned {
            self.has_warned = true;
            self.core.warn_of_wait(state, waited);
        }
        // A device that is merely slow itself is given as long again.
        let is_over =
            !is_pending || waited >= self.core.timeout && !self.core.accuse(state, waited);
        if is_over {
            self.marked = None;
            self.has_warned = false;
            state.has_queued |= is_pending;
        }
    }
}
