//! A thread of the simulation, as the scheduler sees it.

use std::sync::{Arc, Condvar};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Task(usize),
    /// A lock or a condition variable, by where it lies.
    Address(usize),
    Socket(usize),
    /// Room for more bytes on the way to a socket.
    Room(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ready,
    Blocked { keys: Vec<Key>, deadline: Option<Duration> },
    Done,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) process: usize,
    pub(crate) is_main: bool,
    pub(crate) status: Status,
    /// Where its real thread sleeps until it is its turn.
    pub(crate) turn: Arc<Condvar>,
}

impl Task {
    pub(crate) fn is_done(&self) -> bool {
        self.status == Status::Done
    }

    /// Lets it run if it waits for this.
    pub(crate) fn wake(&mut self, key: Key) {
        if matches!(&self.status, Status::Blocked { keys, .. } if keys.contains(&key)) {
            self.status = Status::Ready;
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.status {
            Status::Blocked { deadline, .. } => *deadline,
            Status::Ready | Status::Done => None,
        }
    }
}
