//! Why a plan cannot be simulated, or a link not be fitted.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use crate::{Rank, WorldSize};

/// A plan that cannot be simulated over this network. The caller is at fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    #[error("the hosts of {given} ranks are given, but the plan is for {world_size}")]
    HostsLength { given: usize, world_size: WorldSize },
    #[error("{figure} is {value}; give a number of seconds that is 0 or more")]
    NotATime { figure: &'static str, value: f64 },
    #[error(
        "the plan has more than {limit} steps; use larger chunks, fewer ranks, or an algorithm \
         with fewer frames"
    )]
    TooManySteps { limit: usize },
    #[error("a step of rank {rank} covers {elems} elements; use smaller chunks")]
    TooManyElements { rank: Rank, elems: usize },
    /// A direct step between hosts, which share no memory.
    #[error(
        "rank {rank} reads or writes the memory of rank {peer}, which is on another host; \
         use an algorithm that sends frames"
    )]
    DirectAcrossHosts { rank: Rank, peer: Rank },
    /// A rank that waits for what never comes, or frees what it does not have.
    #[error(
        "rank {rank} is stuck at its step {step}: the plan is not one that the verifier accepts"
    )]
    Stuck { rank: Rank, step: usize },
}

/// Measurements that no link reproduces.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    #[error("there is no measurement with data to fit to; measure at least one size")]
    NoSamples,
    #[error("the time of {bytes} bytes is {time_s} s; measured times are positive")]
    NotATime { bytes: u64, time_s: f64 },
    #[error("the plan for {bytes} bytes moves nothing between ranks; measure two ranks or more")]
    NothingMoves { bytes: u64 },
    #[error("the knots of a link need ascending bytes and positive factors")]
    Knots,
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}
