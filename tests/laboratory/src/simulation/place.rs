//! Where the calling thread is: in which simulation, process and thread of it.
//!
//! Code under test does not know that it is simulated, so nobody hands it its place; a thread-local
//! does. It belongs to the laboratory alone.

use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::simulation::state::State;
use crate::task::{Key, Status};

/// What a call costs, in nanoseconds.
const CALL_NS_MAX: u64 = 400;

/// One call in this many lets another thread run.
const CALLS_PER_SWITCH: u64 = 24;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) state: Mutex<State>,
    /// Signalled when all threads have ended.
    pub(crate) over: Condvar,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) world: Arc<World>,
    pub(crate) process: usize,
    pub(crate) task: usize,
}

/// What unwinds the threads of a process that was killed.
#[derive(Debug)]
pub(crate) struct Killed;

/// A look at something that may have to be waited for.
pub(crate) enum Look<R> {
    Done(R),
    /// Until one of these has news.
    Wait(Vec<Key>),
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vain {
    Late,
    /// The process has been killed, and its threads are ending.
    Dead,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// The place of the calling thread.
///
/// # Panics
/// Outside of a simulation.
pub(crate) fn here() -> Place {
    let place = try_here();
    place.expect("only the threads of a simulation ask for its clock and its network")
}

/// The same, or nothing outside of a simulation.
pub(crate) fn try_here() -> Option<Place> {
    let place = PLACE.try_with(|place| place.borrow().clone());
    place.ok().flatten()
}

/// Puts the calling thread at its place, or takes it out of the simulation.
pub(crate) fn set_here(place: Option<Place>) {
    PLACE.set(place);
}

impl Place {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.world.lock()
    }

    /// The time, as this process knows it.
    pub(crate) fn time(&self) -> Duration {
        let state = self.lock();
        state.now + state.processes[self.process].ghost_time
    }

    /// Sleeps until it is this thread's turn.
    pub(crate) fn await_turn(&self, state: MutexGuard<'_, State>) {
        let turn = Arc::clone(&state.tasks[self.task].turn);
        let mut state = state;
        while state.running != Some(self.task) {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets somebody run, perhaps this thread again.
    fn switch(&self, mut state: MutexGuard<'_, State>) {
        state.choose_next();
        self.await_turn(state);
    }

    /// A call takes a moment, after which another thread may come first.
    pub(crate) fn give_way(&self) {
        let mut state = self.alive();
        let cost = state.chance.below(CALL_NS_MAX) + 1;
        state.now += Duration::from_nanos(cost);
        if state.chance.once_in(CALLS_PER_SWITCH) {
            self.switch(state);
            drop(self.alive());
        }
    }

    pub(crate) fn yield_now(&self) {
        let mut state = self.alive();
        let cost = state.chance.within(2_000..=30_000);
        state.now += Duration::from_nanos(cost);
        self.switch(state);
        drop(self.alive());
    }

    /// The state, unless the process has been killed: then this thread ends here. One that is
    /// ending already continues.
    fn alive(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        if state.processes[self.process].has_ended() && !std::thread::panicking() {
            drop(state);
            resume_unwind(Box::new(Killed));
        }
        state
    }

    /// Looks until there is what is waited for, or for `limit`.
    pub(crate) fn wait<R>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut State) -> Look<R>,
    ) -> Result<R, Vain> {
        self.give_way();
        let mut deadline = None;
        loop {
            let mut state = self.alive();
            if state.processes[self.process].has_ended() {
                state.processes[self.process].ghost_time += limit.unwrap_or_default();
                return Err(Vain::Dead);
            }
            let keys = match look(&mut state) {
                Look::Done(result) => return Ok(result),
                Look::Wait(keys) => keys,
            };
            let now = state.now;
            if let Some(limit) = limit {
                let deadline = *deadline.get_or_insert(now + limit);
                if now >= deadline {
                    return Err(Vain::Late);
                }
            }
            state.tasks[self.task].status = Status::Blocked { keys, deadline };
            self.switch(state);
        }
    }

    /// As [`wait`](Self::wait), for what comes even when the process is killed: its own threads let
    /// go of locks and end.
    pub(crate) fn wait_to_the_end<R>(&self, mut look: impl FnMut(&mut State) -> Look<R>) -> R {
        loop {
            let mut state = self.lock();
            let keys = match look(&mut state) {
                Look::Done(result) => return result,
                Look::Wait(keys) => keys,
            };
            state.tasks[self.task].status = if state.processes[self.process].has_ended() {
                Status::Ready
            } else {
                Status::Blocked { keys, deadline: None }
            };
            self.switch(state);
        }
    }

    /// Ends this thread if its process was killed.
    pub(crate) fn check(&self) {
        drop(self.alive());
    }

    /// This thread is done: somebody else runs.
    pub(crate) fn finish(&self, panic: Option<String>) {
        let mut state = self.lock();
        if let Some(text) = panic {
            let text = format!("{}: {text}", state.tasks[self.task].name);
            state.report.panics.push(text);
        }
        state.finish(self.task);
        state.choose_next();
        if state.running.is_none() {
            self.world.over.notify_all();
        }
    }
}

impl World {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
