//! The wish to end a training early: Ctrl-C, or a scheduler that wants the machine back.
//!
//! A rank never acts on it alone, because the others would wait for it: all agree before each step.

use anyhow::Result;
use bonfire::{Proposal, StopRequest, World, all_or_none};

/// Whether this process was asked to end.
#[derive(Debug)]
pub struct Stop(StopRequest);

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
        Self(StopRequest::never())
    }

    /// SIGINT and SIGTERM ask, while this lives; a second one ends the process at once.
    pub fn on_signals() -> Self {
        Self(StopRequest::watch())
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
            stop: outcome.is_err() || self.0.is_made(),
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

    /// See [`StopRequest::exit_code`].
    pub fn exit_code(&self) -> u8 {
        self.0.exit_code()
    }
}
