//! What a program says of its own progress: which step it is in, and what it does there.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Name, Recorder};
use bonfire_connect::platform::sync::Mutex;

/// How far a rank's program is, as far as it says so with [`ProcessGroup::progress`](crate::ProcessGroup::progress)
/// and [`ProcessGroup::phase`](crate::ProcessGroup::phase).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The step that it has begun.
    pub step: Option<StepProgress>,
    /// What it does at the moment.
    pub phase: Option<PhaseProgress>,
}

/// A step that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepProgress {
    /// The number of the step.
    pub number: u64,
    /// How long ago it began.
    pub began_ago: Duration,
}

/// A phase that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseProgress {
    /// What the program calls it.
    pub name: String,
    /// How long ago it began.
    pub began_ago: Duration,
}

impl Progress {
    /// Whether the program has said nothing.
    pub fn is_empty(&self) -> bool {
        self.step.is_none() && self.phase.is_none()
    }
}

impl fmt::Display for Progress {
    /// As in `step 12 for 3.1 s, "data loading" for 2.9 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(StepProgress { number, began_ago }) = &self.step {
            write!(f, "step {number} for {:.1} s", began_ago.as_secs_f64())?;
        }
        if let Some(PhaseProgress { name, began_ago }) = &self.phase {
            let separator = if self.step.is_some() { ", " } else { "" };
            write!(f, "{separator}{name:?} for {:.1} s", began_ago.as_secs_f64())?;
        }
        Ok(())
    }
}

/// The call of the program that its operations belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) call_site: &'static Location<'static>,
    pub(crate) step: Option<u32>,
}

/// What was said last. Each pair of words may be read in the middle of a change: then the time is that
/// of the one before or after, which is no worse than to have looked a moment earlier or later.
#[derive(Debug, Default)]
pub(super) struct Current {
    /// The step's number and 1; 0 for none.
    step: AtomicU64,
    /// Nanoseconds since the recorder began.
    step_began: AtomicU64,
    /// The name's number; 0 for none.
    phase: AtomicU64,
    phase_began: AtomicU64,
    entered: Mutex<Option<Entered>>,
}

impl Recorder {
    pub(crate) fn set_step(&self, number: u64) {
        let current = &self.current;
        current.step_began.store(self.coarse_time(), Ordering::Relaxed);
        current.step.store(number.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn set_phase(&self, Name(name): Name) {
        let current = &self.current;
        current.phase_began.store(self.coarse_time(), Ordering::Relaxed);
        current.phase.store(name.into(), Ordering::Relaxed);
    }

    /// The program has entered a call, or left it.
    pub(crate) fn enter(&self, call: Option<Entered>) {
        let entered = &self.current.entered;
        *entered.lock() = call;
    }

    pub(crate) fn entered(&self) -> Option<Entered> {
        let entered = &self.current.entered;
        *entered.lock()
    }

    pub(crate) fn step(&self) -> Option<u64> {
        self.current.step.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn progress(&self) -> Progress {
        let current = &self.current;
        let now = self.exact_time();
        let ago = |began: &AtomicU64| {
            Duration::from_nanos(now.saturating_sub(began.load(Ordering::Relaxed)))
        };
        let phase = Name(current.phase.load(Ordering::Relaxed) as u32);
        Progress {
            step: self
                .step()
                .map(|number| StepProgress { number, began_ago: ago(&current.step_began) }),
            phase: self
                .names
                .lock()
                .text_of(phase)
                .map(|name| PhaseProgress { name, began_ago: ago(&current.phase_began) }),
        }
    }
}
