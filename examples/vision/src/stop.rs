//! The wish to end a training early: Ctrl-C, or a scheduler that wants the machine back.
//!
//! A rank never acts on it alone, because the others would wait for it: all agree before each step.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use bonfire::{Interrupt, InterruptWatch, Proposal, World, all_or_none};

/// Nobody has asked.
const NOT_ASKED: u8 = 0;

/// Launchers pass on what the terminal has sent already. What comes later than this comes from
/// somebody who has lost patience.
const ECHO_MAX: Duration = Duration::from_secs(1);

/// Whether this process was asked to end.
#[derive(Debug)]
pub struct Stop {
    /// The number of the signal.
    asked: Arc<AtomicU8>,
    _watch: Option<InterruptWatch>,
}

/// What all ranks do next.
#[derive(Debug)]
pub enum Turn<B> {
    /// A step, with this rank's batch if it has one.
    Step(Option<B>),
    /// No rank has a batch.
    End,
    /// Some rank was asked to end.
    Stop,
}

impl Stop {
    /// Nobody asks: for tests and for what may end anywhere.
    pub fn never() -> Self {
        Self {
            asked: Arc::default(),
            _watch: None,
        }
    }

    /// SIGINT and SIGTERM ask, while this lives; a second one ends the process at once.
    ///
    /// # Errors
    /// If this process has such a watch already.
    pub fn on_signals() -> io::Result<Self> {
        let asked = Arc::<AtomicU8>::default();
        let (noted, mut first) = (Arc::clone(&asked), None);
        let watch = InterruptWatch::start(move |interrupt| {
            noted.store(interrupt.number(), Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() > ECHO_MAX {
                process::exit(i32::from(code(interrupt.number())));
            }
        })?;
        Ok(Self {
            asked,
            _watch: Some(watch),
        })
    }

    /// What all ranks do next, this one with what its data has given: a batch, an error, or nothing
    /// more. Every rank must call it, between the same two steps.
    ///
    /// # Errors
    /// The data's of the lowest rank that has one, which tells it for all; or if a rank has failed.
    pub fn turn<B, E>(&self, world: &World, prepared: Option<Result<B, E>>) -> Result<Turn<B>>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let (batch, outcome) = match prepared {
            Some(Ok(batch)) => (Some(batch), Ok(())),
            Some(Err(error)) => (None, Err(error)),
            None => (None, Ok(())),
        };
        let agreed = world.group().agree(Proposal {
            stop: outcome.is_err() || self.asked.load(Ordering::Relaxed) != NOT_ASKED,
            out_of_data: batch.is_none(),
            ..Proposal::default()
        });
        let agreed = match agreed {
            Ok(agreed) => agreed,
            // What this rank has found itself says more.
            Err(failure) => {
                outcome?;
                return Err(failure.into());
            }
        };
        if agreed.stop.is_some() {
            all_or_none(world, outcome)?;
            return Ok(Turn::Stop);
        }
        Ok(match agreed.with_data {
            Some(_) => Turn::Step(batch),
            None => Turn::End,
        })
    }

    /// As what a shell would report the end of this process, had it not watched for the signal. A
    /// rank that stops because of another ends as if it had been asked as politely.
    pub fn exit_code(&self) -> u8 {
        match self.asked.load(Ordering::Relaxed) {
            NOT_ASKED => code(Interrupt::Terminate.number()),
            signal => code(signal),
        }
    }
}

fn code(signal: u8) -> u8 {
    128 + signal
}
