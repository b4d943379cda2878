//! A queue of work with a thread that does it, and the points in its order that others wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::table::lock;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    queued: u64,
    done: u64,
    closed: bool,
}

impl Queue {
    pub(crate) fn start() -> Arc<Self> {
        let queue = Arc::new(Self::default());
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new().name("stand-in stream".to_owned());
        thread.spawn(move || own.work()).expect("the system has threads");
        queue
    }

    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        state.tasks.push_back(Box::new(task));
        state.queued += 1;
        self.changed.notify_all();
    }

    /// What is queued from now on starts when the tick has come.
    pub(crate) fn wait_for(&self, tick: Arc<Tick>) {
        self.push(move || tick.wait());
    }

    /// The tick comes, as far as this queue is concerned, when all that is queued now is done.
    pub(crate) fn mark(&self, tick: Arc<Tick>) {
        self.push(move || tick.arrive());
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.done == state.queued
    }

    /// Nothing is left, and nothing will come.
    pub(crate) fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.closed && state.done == state.queued
    }

    pub(crate) fn wait(&self) {
        let mut state = lock(&self.state);
        let last = state.queued;
        while state.done < last {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The thread ends when all is done.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = lock(&self.state);
                state.done += 1;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// A point in the order of one or several queues.
pub(crate) struct Tick {
    state: Mutex<TickState>,
    changed: Condvar,
}

struct TickState {
    left: usize,
    at: Option<Instant>,
}

impl Tick {
    /// Comes when `queues` queues have arrived.
    pub(crate) fn of(queues: usize) -> Arc<Self> {
        let at = (queues == 0).then(Instant::now);
        let state = TickState { left: queues, at };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn arrive(&self) {
        let mut state = lock(&self.state);
        state.left -= 1;
        if state.left == 0 {
            state.at = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    pub(crate) fn wait(&self) {
        let mut state = lock(&self.state);
        while state.left > 0 {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn at(&self) -> Option<Instant> {
        lock(&self.state).at
    }
}
