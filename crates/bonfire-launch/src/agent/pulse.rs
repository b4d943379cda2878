//! The thread with which this host's agent shows the others that it is there, and learns of failures on other hosts.
//!
//! Host 0 counts seconds in the store, and each agent writes there what it has last read. So all agents know
//! how long one has been silent, without a clock that they share. Nothing here touches a process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonfire_collective::{Store, StoreError, TcpStore};
use bonfire_sys::lock::Mutex;

use super::agents::{SLICE, decode, encode, end_key, failed_key};

const PERIOD: Duration = Duration::from_secs(1);
/// An agent that has not beaten for this many periods is lost: as long as a rank may be silent.
const SILENCE_MAX: i64 = 15;
const CLOCK: &str = "node-clock";

pub(super) struct Pulse {
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct Watch {
    post: Arc<Post>,
}

struct Post {
    stop: AtomicBool,
    duty: Mutex<Duty>,
}

/// Which attempt is watched, and who is to know of its failure.
#[derive(Default)]
struct Duty {
    attempt: u32,
    on_failure: Option<Box<dyn FnOnce() + Send>>,
    /// Host 0 does not answer any more.
    is_lost: bool,
}

impl Pulse {
    /// Of host `node_rank` of `nnodes`, over a connection of its own.
    pub(super) fn start(store: TcpStore, node_rank: u32, nnodes: u32) -> io::Result<Self> {
        let post = Arc::new(Post { stop: AtomicBool::new(false), duty: Mutex::default() });
        let heart = Heart { store, node_rank, nnodes, post: Arc::clone(&post) };
        let thread = thread::Builder::new().name("bonfire-agents".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = heart.beat() {
                tracing::debug!("node {node_rank}: {error}");
                let mut duty = heart.post.duty.lock();
                duty.is_lost = true;
                duty.report_failure();
            }
        })?;
        Ok(Self { post, thread: Some(thread) })
    }

    /// Calls `on_failure` once another host has reported the failure of this attempt, or is lost.
    pub(super) fn watch(&self, attempt: u32, on_failure: impl FnOnce() + Send + 'static) -> Watch {
        let mut duty = self.post.duty.lock();
        duty.attempt = attempt;
        duty.on_failure = Some(Box::new(on_failure));
        if duty.is_lost {
            duty.report_failure();
        }
        Watch { post: Arc::clone(&self.post) }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.post.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Its waits are short, and a store that is gone ends them at once.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.post.duty.lock().on_failure = None;
    }
}

impl Duty {
    fn report_failure(&mut self) {
        if let Some(on_failure) = self.on_failure.take() {
            on_failure();
        }
    }

    fn watched(&self) -> Option<u32> {
        self.on_failure.is_some().then_some(self.attempt)
    }
}

struct Heart {
    store: TcpStore,
    node_rank: u32,
    nnodes: u32,
    post: Arc<Post>,
}

impl Heart {
    fn beat(&self) -> Result<(), StoreError> {
        let mut due = Instant::now();
        while !self.post.stop.load(Ordering::Acquire) {
            let attempt = self.post.duty.lock().watched();
            if Instant::now() >= due {
                due = Instant::now() + PERIOD;
                show(&self.store, self.node_rank)?;
                if let Some(attempt) = attempt.filter(|_| self.node_rank == 0) {
                    self.look_for_the_lost(attempt)?;
                }
            }
            let Some(attempt) = attempt else {
                thread::sleep(SLICE);
                continue;
            };
            match self.store.get(&failed_key(attempt), SLICE) {
                Ok(_) => {
                    let mut duty = self.post.duty.lock();
                    if duty.attempt == attempt {
                        duty.report_failure();
                    }
                }
                Err(StoreError::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Notifies all agents if one is silent that has not reported its end.
    fn look_for_the_lost(&self, attempt: u32) -> Result<(), StoreError> {
        for node in 1..self.nnodes {
            if is_silent(&self.store, node)
                && self.store.get(&end_key(attempt, node), Duration::ZERO).is_err()
            {
                tracing::warn!(
                    "node {node} is lost: its launcher has been silent for {SILENCE_MAX} s"
                );
                return self.store.set(&failed_key(attempt), b"");
            }
        }
        Ok(())
    }
}

pub(super) fn show(store: &TcpStore, node_rank: u32) -> Result<(), StoreError> {
    let clock = store.add(CLOCK, i64::from(node_rank == 0))?;
    store.set(&beat_key(node_rank), &encode(&clock))
}

pub(super) fn is_silent(store: &TcpStore, node: u32) -> bool {
    let beat = store.get(&beat_key(node), Duration::ZERO).ok();
    let beat = beat.and_then(|beat| decode::<i64>(&beat).ok());
    let clock = store.add(CLOCK, 0).ok();
    matches!((beat, clock), (Some(beat), Some(clock)) if clock - beat >= SILENCE_MAX)
}

fn beat_key(node: u32) -> String {
    format!("node-beat/{node}")
}
