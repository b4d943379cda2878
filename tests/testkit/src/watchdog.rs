//! Ends a test program that hangs, and says which test did.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Ends the process with a message unless it is dropped in time. A limit for hangs, not for speed:
/// give it many times what the test takes.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub fn start(name: &str, limit: Duration) -> Self {
        let (alive, watched) = channel::<()>();
        let name = name.to_owned();
        thread::spawn(move || {
            if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {name} did not end within {} s", limit.as_secs());
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
