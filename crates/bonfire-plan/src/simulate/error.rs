//! Why a plan cannot be simulated, or a link not be fitted.

use crate::{Rank, WorldSize};

/// A plan that cannot be simulated over this network. The caller is at fault.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// A network for more or fewer ranks than the plan's.
    #[error("the hosts of {given} ranks are given, but the plan is for {world_size}")]
    HostsLength {
        /// Ranks that have an entry in the network's hosts.
        given: usize,
        /// The number of ranks of the plan.
        world_size: WorldSize,
    },
    /// A cost of a link that is negative, infinite or not a number.
    #[error("{figure} is {value}; give a number of seconds that is 0 or more")]
    NotATime {
        /// The field of [`Link`](super::Link) that holds the cost.
        figure: &'static str,
        /// What it holds, in seconds or seconds per byte.
        value: f64,
    },
    /// More steps, or more pairs of ranks, than a simulation can hold.
    #[error(
        "the plan has more than {limit} steps; use larger chunks, fewer bytes or ranks, or an \
         algorithm with fewer frames"
    )]
    TooManySteps {
        /// The most steps of all ranks together.
        limit: usize,
    },
    /// A step that does not fit the packed form of steps.
    #[error("a step of rank {rank} covers {elems} elements; use smaller chunks")]
    TooManyElements {
        /// The rank whose list has the step.
        rank: Rank,
        /// Elements of the step, which must be fewer than 2^37.
        elems: usize,
    },
    /// A direct step between hosts, which share no memory.
    #[error(
        "rank {rank} reads or writes the memory of rank {peer}, which is on another host; \
         use an algorithm that sends frames"
    )]
    DirectAcrossHosts {
        /// The rank whose list has the step.
        rank: Rank,
        /// The first source or target on another host.
        peer: Rank,
    },
    /// A rank that waits for what never comes, or frees what it does not have.
    #[error(
        "rank {rank} is stuck at its step {step}: the plan is not one that the verifier accepts"
    )]
    Stuck {
        /// A rank that cannot continue; others may wait for it.
        rank: Rank,
        /// The place in its list at which it stopped, from 0.
        step: usize,
    },
}

/// Measurements that no link reproduces.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// An empty list of measurements for [`LinkModel::fit`](super::LinkModel::fit).
    #[error("there is no measurement with data to fit to; measure at least one size")]
    NoSamples,
    /// A measured time that is infinite, not a number, or not above 0.
    #[error("the time of {bytes} bytes is {time_s} s; measured times are positive")]
    NotATime {
        /// Bytes of the operation, as its user counts them.
        bytes: u64,
        /// The time that was given, in seconds.
        time_s: f64,
    },
    /// A plan that takes no time over any link.
    #[error("the plan for {bytes} bytes moves nothing between ranks; measure two ranks or more")]
    NothingMoves {
        /// Bytes of the operation, as its user counts them.
        bytes: u64,
    },
    /// Sizes that do not ascend, or a factor that is not finite and positive.
    #[error("the knots of a link need ascending bytes and positive factors")]
    Knots,
    /// A link, or the plan of a measurement, that cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}
