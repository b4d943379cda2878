//! What the user and the system wish of this process, from the first moment of the agent to its last.
//!
//! While ranks run, the supervisor heeds it. When nothing is there to end, it ends this process at once: also
//! as the first process of a container, which the kernel ends for no signal without a handler.

use bonfire_sys::lock::Mutex;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use bonfire_sys::process::{Interrupt, InterruptWatch, StopWatch, is_orphaned, stop_this_process};

use crate::error::LaunchError;
use crate::interrupt::Echoes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    End(Interrupt),
    /// All of the job is to stop until it is continued, as by Ctrl-Z and `fg`.
    Stop,
}

/// The signals of this process, which are the agent's while it lives.
pub(crate) struct Signals {
    state: Arc<Mutex<State>>,
    _ends: InterruptWatch,
    _stops: StopWatch,
}

struct State {
    listener: Option<Box<dyn FnMut(Wish) + Send>>,
    echoes: Echoes,
}

pub(crate) struct Listening {
    state: Arc<Mutex<State>>,
}

impl Signals {
    pub(crate) fn watch() -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State { listener: None, echoes: Echoes::default() }));
        let (ends, stops) = (Arc::clone(&state), Arc::clone(&state));
        Ok(Self {
            state,
            _ends: InterruptWatch::start(move |by| end(&mut ends.lock(), by))?,
            _stops: StopWatch::start(move || stop(&mut stops.lock()))?,
        })
    }

    /// Hands wishes to a function until what this returns is dropped.
    pub(crate) fn listen(&self, listener: impl FnMut(Wish) + Send + 'static) -> Listening {
        self.state.lock().listener = Some(Box::new(listener));
        Listening { state: Arc::clone(&self.state) }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.state.lock().listener = None;
    }
}

fn end(state: &mut State, by: Interrupt) {
    if state.echoes.contain(Instant::now()) {
        return;
    }
    if let Some(listener) = &mut state.listener {
        return listener(Wish::End(by));
    }
    let interrupted = LaunchError::Interrupted { by };
    // A closed stream cannot report it.
    let _ = writeln!(io::stderr(), "error: {interrupted}");
    std::process::exit(interrupted.exit_code().into());
}

fn stop(state: &mut State) {
    // As the first process of a terminal or a container, it would never be continued.
    if is_orphaned() {
        return;
    }
    match &mut state.listener {
        Some(listener) => listener(Wish::Stop),
        // Raising a signal in this thread cannot fail.
        None => drop(stop_this_process()),
    }
}
