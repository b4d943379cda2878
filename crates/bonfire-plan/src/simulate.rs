//! What a plan would take: its steps, run in simulated time over links that cost time.
//!
//! A discrete-event simulation of the very lists that the engines execute, for worlds of a thousand ranks and more.
//! It reads no clock and no random numbers: the same input gives the same output, to the bit.
//!
//! # Model
//!
//! A rank runs its steps one after the other. What a step costs depends on the [`Link`] between the
//! two ranks: `intra` on one host, `inter` between hosts.
//! - A put takes `overhead_s` and `copy_s_per_byte` of the sender. It then hands the frame to a
//!   port and continues.
//! - A wait lasts until the frame has arrived, and then takes `overhead_s` of the receiver.
//! - A copy takes `copy_s_per_byte`; a fold takes `fold_s_per_byte` for every operand but the first.
//! - The latency of a frame with more than `short_bytes` of payload is `long_latency_s` longer.
//! - A release takes nothing. The sender may use the slot `latency_s` later.
//!
//! # Contention
//!
//! A frame passes two ports: out of the sender and into the receiver. Within a host these are ports of the two ranks;
//! between hosts they are those of the two hosts' network cards, which all ranks of a host share. A rank's port
//! serves one frame at a time, in the order in which their first bytes reach it, and holds each for `s_per_byte`
//! times its length; frames that reach it at the same instant are served in an order that is fixed but means nothing.
//! A network card serves the frames of one link in their order, and the links that have any at the same time, each
//! with an equal share of the bandwidth, as TCP and RDMA do. Between the two ports lie `latency_s`. Forwarding is
//! cut-through: the second port starts when the first *byte* arrives, so an undisturbed frame of m bytes takes
//! latency + m · s_per_byte, not twice the second term. Queues in front of ports have no bound of their own; the
//! slots of the plan's links are what limits them. A port out and a port in do not disturb each other (full duplex),
//! nor do two pairs of hosts: the network between the cards has all the bandwidth it needs. Headers have no length;
//! their cost is part of the overhead.
//!
//! A [`Step::ReduceDirect`] moves no frames. It loads its range from all other ranks among its sources at once, over
//! their ports out and its own port in; a load pays the latency twice, for the request and for the data. When all is
//! there it folds, and writes to all other ranks among its targets, over its own port out and theirs in. It continues
//! while its writes are under way, but its next put, and its end, wait until they have arrived. A step with one
//! source costs a copy in place of a fold, and each write to another rank a copy.
//!
//! # Where closed forms hold
//!
//! With one chunk per message, shards of equal length, as many slots as a rank sends frames ahead of their release,
//! and no port used by two frames at once, the time is that of the textbook formula; for a ring all-reduce of S bytes
//! 2(n-1)·(latency + 2·overhead) + 2(n-1)/n·S·s_per_byte + (n-1)/n·S·fold. Several chunks per message change it
//! either way: where a plan puts a chunk before it needs the one before, transfers and folds overlap and the time is
//! shorter; where it takes one first, as this ring does, every chunk pays the latency.

mod between_hosts;
mod card;
mod engine;
mod error;
mod events;
mod fit;
mod link;
mod path;
mod program;
mod steps;

mod trace;

use std::borrow::Cow;

pub use error::{FitError, SimulateError};
pub use fit::{FitSample, Knot, LinkModel, Mover};
pub use link::{Class, Link, Network};
pub use path::{Activity, PathPart, PathTotals, Segment};
pub use trace::{Lane, Span};

use crate::{Bytes, DType, Plan, Schedule};
use engine::Engine;
use program::Program;

#[cfg(doc)]
use crate::Step;

/// What is kept of a simulation beside its totals and its critical path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Nothing beside the totals and the path.
    Totals,
    /// What every rank and network card did when: memory in proportion to the number of steps.
    Timeline,
}

/// What one rank did, in sums.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct RankTotals {
    /// When its last step ended, in seconds from the start.
    pub end_s: f64,
    /// How long it was blocked, in seconds.
    pub blocked_s: f64,
    /// Frames that it put, empty ones included.
    pub frames_sent: u64,
    /// Bytes that left it: in frames, and in direct steps of its own and of others.
    pub bytes_sent: u64,
    /// Bytes that reached it: in frames, and in direct steps of its own and of others.
    pub bytes_received: u64,
}

/// What one host's network card did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct NicTotals {
    /// Frames of the host's ranks to ranks of other hosts.
    pub frames_sent: u64,
    /// Bytes of elements in those frames, without headers.
    pub bytes_sent: u64,
    /// Bytes of elements in frames from ranks of other hosts.
    pub bytes_received: u64,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Simulation {
    /// When the last rank was done, in seconds from the start.
    pub time_s: f64,
    /// The longest chain of frames of which each had to arrive before the next could be put.
    pub rounds: u64,
    /// Each rank, in rank order.
    pub ranks: Vec<RankTotals>,
    /// Each host, in the order of [`Hosts`](crate::Hosts).
    pub nics: Vec<NicTotals>,
    /// What the last rank to be done waited for, and so on back to the start: segments without
    /// gaps, from 0 to `time_s`.
    pub path: Vec<Segment>,
    /// What happened when, by [`Detail::Timeline`]; else empty. Spans of one lane do not overlap.
    pub spans: Vec<Span>,
}

impl Simulation {
    /// The bytes that all ranks sent together.
    pub fn bytes_sent_total(&self) -> Bytes {
        Bytes::new(self.ranks.iter().map(|rank| rank.bytes_sent).sum())
    }

    /// The frames that all ranks sent together.
    pub fn frames_sent_total(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.frames_sent).sum()
    }

    /// The critical path, added up by what was waited for.
    pub fn path_totals(&self) -> PathTotals {
        PathTotals::of(&self.path)
    }
}

/// Runs the steps of `schedule` in simulated time.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use bonfire_plan::simulate::{Detail, Link, Network, simulate};
/// use bonfire_plan::*;
///
/// let world_size = WorldSize::new(4)?;
/// let schedule = Schedule::new(ScheduleShape {
///     collective: Collective::AllReduce,
///     algorithm: Algorithm::Ring,
///     world_size,
///     count: 1000,
///     chunk_elems_max: NonZeroUsize::new(1000).unwrap(),
///     partition: Partition::Balanced,
///     hosts: Hosts::one(world_size),
/// })?;
/// // 10 us, and 1 GB/s.
/// let link = Link::new(10e-6, 1e-9);
/// let network = Network::one_host(world_size, link);
/// let simulation = simulate(&schedule, DType::F32, &network, Detail::Totals)?;
/// // 2 (n - 1) rounds, each with the latency and the bytes of a shard.
/// assert!((simulation.time_s - 6.0 * (10e-6 + 1e-6)).abs() < 1e-12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SimulateError`] when the network does not fit the schedule or the plan is too long.
pub fn simulate(
    schedule: &Schedule,
    dtype: DType,
    network: &Network,
    detail: Detail,
) -> Result<Simulation, SimulateError> {
    let program = Program::of_schedule(schedule, &network.hosts)?;
    Engine::new(&program, dtype, network, detail)?.run()
}

/// As [`simulate`], for step lists that are already there and that [`check_plan`](crate::check_plan) accepts.
///
/// # Errors
/// As [`simulate`]; and [`SimulateError::Stuck`] for a list that the verifier would have refused.
pub fn simulate_plan(
    plan: &Plan,
    dtype: DType,
    network: &Network,
    detail: Detail,
) -> Result<Simulation, SimulateError> {
    let world_size = plan.schedule().world_size();
    let steps = |rank| Cow::Borrowed(plan.steps(rank));
    let program = Program::new(world_size, &network.hosts, steps)?;
    Engine::new(&program, dtype, network, detail)?.run()
}
