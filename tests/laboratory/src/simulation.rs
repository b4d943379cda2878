//! A run: what is there, what goes wrong, and how it ends.

mod fault;
pub mod net;
pub(crate) mod place;
pub(crate) mod state;
pub mod thread;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub use fault::Fault;
use net::Conditions;
use place::{Place, World};
use state::{Event, State};
use thread::start;

use crate::process::Process;
use crate::report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId(pub(crate) usize);

pub struct Simulation {
    world: Arc<World>,
    mains: Vec<Main>,
}

struct Main {
    name: String,
    body: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Simulation").field(&self.world).finish()
    }
}

impl Simulation {
    /// An empty one. A run that takes longer than `horizon` on its own clock hangs.
    pub fn new(seed: u64, conditions: Conditions, horizon: Duration) -> Self {
        let world = World {
            state: Mutex::new(State::new(seed, conditions, horizon)),
            over: Condvar::new(),
        };
        Self { world: Arc::new(world), mains: Vec::new() }
    }

    pub fn process(
        &mut self,
        name: &str,
        host: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> ProcessId {
        self.add(name, host, true, Box::new(body))
    }

    /// Adds a process that ends when all others have.
    pub fn servant(
        &mut self,
        name: &str,
        host: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> ProcessId {
        self.add(name, host, false, Box::new(body))
    }

    fn add(
        &mut self,
        name: &str,
        host: usize,
        is_awaited: bool,
        body: Box<dyn FnOnce() + Send>,
    ) -> ProcessId {
        let mut state = self.world.lock();
        let number = state.processes.len();
        let process = Process::new(number, name.to_owned(), host, is_awaited);
        state.processes.push(process);
        let name = name.to_owned();
        self.mains.push(Main { name, body });
        ProcessId(number)
    }

    /// Has something go wrong at a time.
    pub fn fault(&mut self, at: Duration, fault: Fault) {
        self.world.lock().plan(at, Event::Fault(fault));
    }

    pub fn run(self) -> Report {
        let mut threads = Vec::with_capacity(self.mains.len());
        for (process, main) in self.mains.into_iter().enumerate() {
            let task = self.world.lock().add_task(&main.name, process, true);
            let place = Place { world: Arc::clone(&self.world), process, task };
            let body = main.body;
            let thread = std::thread::Builder::new().name(main.name);
            let thread = thread.spawn(move || start(place, body));
            threads.push(thread.expect("the system has a thread for every process"));
        }
        let mut state = self.world.lock();
        state.choose_next();
        while state.running.is_some() {
            let waited = self.world.over.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.report.time = state.now;
        let report = state.report.clone();
        drop(state);
        for thread in threads {
            // How each ended is in the report.
            let _ = thread.join();
        }
        report
    }
}
