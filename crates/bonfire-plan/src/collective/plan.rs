//! The steps of all ranks, side by side: what the verifier reads and a person can print.

use std::fmt;

use crate::{Rank, Schedule, Step};

/// The step lists of every rank, as data.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use bonfire_plan::*;
///
/// let world_size = WorldSize::new(2)?;
/// let schedule = Schedule::new(ScheduleShape {
///     collective: Collective::AllGather,
///     algorithm: Algorithm::Ring,
///     world_size,
///     count: 6,
///     chunk_elems_max: NonZeroUsize::new(64).unwrap(),
///     partition: Partition::Balanced,
///     hosts: Hosts::one(world_size),
/// })?;
/// let listing = Plan::new(schedule).to_string();
/// assert_eq!(
///     listing,
///     "\
/// all_gather by ring: world size 2, 6 elements, chunks of at most 64
/// rank 0
///     0  put 0..3 -> rank 1
///     1  wait rank 1
///     2  copy 3..6 = inbox[1]
///     3  release rank 1
/// rank 1
///     0  put 3..6 -> rank 0
///     1  wait rank 0
///     2  copy 0..3 = inbox[0]
///     3  release rank 0
/// "
/// );
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    schedule: Schedule,
    steps: Vec<Vec<Step>>,
}

impl Plan {
    /// The step lists that `schedule` gives its ranks.
    pub fn new(schedule: Schedule) -> Self {
        let ranks = schedule.world_size().ranks();
        let steps = ranks.map(|rank| schedule.steps(rank)).collect();
        Self { schedule, steps }
    }

    /// Other step lists, one per rank in rank order, that claim to do what `schedule` does.
    /// [`check_plan`](crate::check_plan) says whether they do.
    ///
    /// # Panics
    /// When there is not one list per rank.
    pub fn with_steps(schedule: Schedule, steps: Vec<Vec<Step>>) -> Self {
        let (given, ranks) = (steps.len(), schedule.world_size().len());
        assert_eq!(given, ranks, "a plan needs one list of steps per rank");
        Self { schedule, steps }
    }

    /// The schedule that this plan performs, or claims to perform.
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What `rank` does, in order.
    ///
    /// # Panics
    /// When `rank` is not a member of the world.
    pub fn steps(&self, rank: Rank) -> &[Step] {
        &self.steps[rank.index()]
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.schedule)?;
        for rank in self.schedule.world_size().ranks() {
            writeln!(formatter, "rank {rank}")?;
            for (index, step) in self.steps(rank).iter().enumerate() {
                writeln!(formatter, "{index:>5}  {step}")?;
            }
        }
        Ok(())
    }
}
