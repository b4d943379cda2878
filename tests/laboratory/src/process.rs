//! A process of the simulation.

use std::time::Duration;

/// What number the first process has for the system.
const FIRST_ID: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) host: usize,
    /// Whether the simulation continues for its sake.
    pub(crate) is_awaited: bool,
    number: usize,
    life: Life,
    /// What a dead process's threads believe to have slept while they end.
    pub(crate) ghost_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// Until this time; for ever if there is none.
    Stopped(Option<Duration>),
    Ended,
}

impl Process {
    pub(crate) fn new(number: usize, name: String, host: usize, is_awaited: bool) -> Self {
        Self { name, host, is_awaited, number, life: Life::Running, ghost_time: Duration::ZERO }
    }

    pub(crate) fn system_id(&self) -> u32 {
        FIRST_ID + self.number as u32
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life == Life::Ended
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.life, Life::Stopped(_))
    }

    /// Whether it will run again.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self.life, Life::Stopped(None) | Life::Ended)
    }

    pub(crate) fn end(&mut self) {
        self.life = Life::Ended;
    }

    pub(crate) fn stop(&mut self, until: Option<Duration>) {
        if self.life != Life::Ended {
            self.life = Life::Stopped(until);
        }
    }

    /// Resumes it if `now` is late enough.
    pub(crate) fn resume(&mut self, now: Duration) {
        if matches!(self.life, Life::Stopped(Some(until)) if until <= now) {
            self.life = Life::Running;
        }
    }
}
