//! The symbolic verifier: proves a plan before it runs.
//!
//! It executes the steps of all ranks on symbols instead of numbers, with queues of a given number
//! of slots, and requires that
//! - every rank finishes, and every frame is waited for, read and released exactly once;
//! - no range leaves the rank's part of the space of elements, nothing is written that the
//!   collective leaves as it is, no frame is longer than a slot, and every frame is written to the
//!   elements that it was put from;
//! - of any two accesses to one element of which one writes, frames put one before the other, the
//!   caller's own before and after the collective included;
//! - nothing is read before it is written;
//! - no rank's data is folded into an element twice, and no fold continues after its final stage;
//! - every rank ends with what the collective promises, folded in the same order on all of them,
//!   so that replicas have the same bits.
//!
//! It says nothing about numbers, time, or whether an engine follows the plan.

mod atoms;
mod content;
mod cost;
mod error;
mod expression;
mod link;
mod races;
mod rank_set;
mod reach;
mod run;

use std::num::NonZeroUsize;

pub use cost::{Cost, RankCost};
pub use error::{Blocked, CheckError, Fault, Flaw, Obstacle};

use crate::{Order, Plan, Schedule};

/// What is known of a plan that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The weakest of all elements and ranks; [`Order::Canonical`] where nothing is folded.
    pub order: Order,
    /// Frames, elements and rounds of all ranks, without times.
    pub cost: Cost,
}

/// Proves that `schedule` does what its collective promises, with `slots` slots for each ordered
/// pair of ranks. A plan that passes with some number of slots passes with more.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use bonfire_plan::*;
///
/// let world_size = WorldSize::new(8)?;
/// let schedule = Schedule::new(ScheduleShape {
///     collective: Collective::AllReduce,
///     algorithm: Algorithm::TwoShot,
///     world_size,
///     count: 1_000_003,
///     chunk_elems_max: NonZeroUsize::new(1 << 18).unwrap(),
///     partition: Partition::Balanced,
///     hosts: Hosts::one(world_size),
/// })?;
/// let report = check(&schedule, NonZeroUsize::MIN)?;
/// assert_eq!(report.order, Order::Canonical);
/// assert_eq!(report.cost.rounds(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first violation found.
pub fn check(schedule: &Schedule, slots: NonZeroUsize) -> Result<Report, CheckError> {
    check_plan(&Plan::new(schedule.clone()), slots)
}

/// As [`check`], for step lists that are already there.
///
/// # Errors
/// The first violation found.
pub fn check_plan(plan: &Plan, slots: NonZeroUsize) -> Result<Report, CheckError> {
    let mut run = run::Run::new(plan, slots.get());
    run.finish()?;
    let order = run.verify()?;
    Ok(Report { order, cost: run.cost() })
}
