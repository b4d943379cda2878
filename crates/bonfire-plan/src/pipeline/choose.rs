//! Which schedule suits a model: all that are possible, by simulated time.

use std::num::NonZeroU32;

use super::action::PassTimes;
use super::kind::Kind;
use super::schedule::Schedule;
use super::shape::Shape;
use super::simulate::{Costs, CostsError, simulate};
use crate::{Bytes, WorldSize};

/// What a schedule is chosen for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The ranks of one pipeline, among which the layers are divided.
    pub ranks: WorldSize,
    /// The micro-batches of a step, each for every stage.
    pub micro_batches: NonZeroU32,
    /// The most stages on a rank; at most the layers of a rank.
    pub chunks_max: NonZeroU32,
    /// The measured times of a rank's layers, for one micro-batch.
    pub times: PassTimes,
    /// The seconds that a message takes between two ranks.
    pub message_s: f64,
    /// The activations of a rank's layers, for one micro-batch.
    pub activations: Bytes,
    /// The memory that a rank has for activations.
    pub activations_max: Bytes,
}

/// A schedule that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// What it is made from.
    pub shape: Shape,
    /// The seconds of a step.
    pub makespan_s: f64,
    /// The part of the ranks' time in which they compute nothing, from 0 to 1.
    pub bubble: f64,
    /// The activations of the fullest rank.
    pub activations: Bytes,
}

/// Simulates every schedule that is possible and fits into the memory. The fastest comes first; of equal times the
/// one with fewer activations, then the one with fewer stages.
///
/// # Errors
/// [`CostsError`] when a time is none.
pub fn choose(demand: &Demand) -> Result<Vec<Candidate>, CostsError> {
    let mut candidates = Vec::new();
    let chunks = (1..=demand.chunks_max.get()).filter_map(NonZeroU32::new);
    for chunks in chunks {
        for &kind in Kind::ALL {
            let shape =
                Shape { kind, ranks: demand.ranks, chunks, micro_batches: demand.micro_batches };
            candidates.extend(candidate(demand, shape)?);
        }
    }
    candidates.sort_by(|one, other| {
        let by_time = one.makespan_s.total_cmp(&other.makespan_s);
        by_time.then(one.activations.cmp(&other.activations))
    });
    Ok(candidates)
}

/// `None` for a shape that is impossible or needs too much memory.
fn candidate(demand: &Demand, shape: Shape) -> Result<Option<Candidate>, CostsError> {
    let Ok(schedule) = Schedule::new(shape) else {
        return Ok(None);
    };
    let live = u64::from(schedule.live_max().into_iter().max().unwrap_or(0));
    let held = live.saturating_mul(demand.activations.get());
    let activations = Bytes::new(held.div_ceil(u64::from(shape.chunks.get())));
    if activations > demand.activations_max {
        return Ok(None);
    }
    let costs = Costs::even(demand.times, &schedule, demand.message_s)?;
    let timing = simulate(&schedule, &costs).expect("a schedule of a possible shape is proved");
    Ok(Some(Candidate {
        shape,
        makespan_s: timing.makespan_s,
        bubble: timing.bubble(),
        activations,
    }))
}
