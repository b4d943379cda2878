//! The choice of a plan, and the steps it gives each rank.

use std::fmt;
use std::num::NonZeroUsize;

use super::algorithm;
use super::extent::{Role, extent};
use crate::types::fnv_1a;
use crate::{Algorithm, Collective, ElemRange, Hosts, NamedRanks, Partition};
use crate::{PlanError, Rank, Step, WorldSize};

/// Everything that determines a plan. Ranks that agree on it agree on every frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScheduleShape {
    /// What the ranks do together, with its root or pair.
    pub collective: Collective,
    /// One of [`Algorithm::candidates`] of the collective.
    pub algorithm: Algorithm,
    /// All ranks of the group, those that a transfer leaves idle included.
    pub world_size: WorldSize,
    /// The elements of every rank's buffer; 0 for a barrier. What [`Collective`] says otherwise
    /// of its space of elements holds.
    pub count: usize,
    /// The most elements of one frame; longer ranges are sent in several.
    pub chunk_elems_max: NonZeroUsize,
    /// The length of each rank's block, where a collective has blocks.
    pub partition: Partition,
    /// Which ranks share a host, for an algorithm that [looks at it](Algorithm::looks_at_hosts).
    pub hosts: Hosts,
}

/// A plan that exists for its shape: what every rank does, computed on demand.
///
/// No schedule deadlocks, even with one slot for each ordered pair of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule {
    shape: ScheduleShape,
}

impl Schedule {
    /// The plan for this shape.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] when the algorithm does not implement the collective, [`PlanError::RootOutOfRange`]
    /// when a rank it names is not in the world, and others that say what of the shape does not fit together.
    pub fn new(shape: ScheduleShape) -> Result<Self, PlanError> {
        shape.validate()?;
        Ok(Self { shape: shape.normalized() })
    }

    /// What the plan was made for.
    pub const fn shape(&self) -> &ScheduleShape {
        &self.shape
    }

    /// The collective that is performed.
    pub const fn collective(&self) -> Collective {
        self.shape.collective
    }

    /// The algorithm that performs it.
    pub const fn algorithm(&self) -> Algorithm {
        self.shape.algorithm
    }

    /// The number of ranks that take part.
    pub const fn world_size(&self) -> WorldSize {
        self.shape.world_size
    }

    /// The elements of every rank's buffer.
    pub const fn count(&self) -> usize {
        self.shape.count
    }

    /// The most elements that one frame carries.
    pub const fn chunk_elems_max(&self) -> NonZeroUsize {
        self.shape.chunk_elems_max
    }

    /// The elements of the space that the steps of all ranks address.
    pub const fn space(&self) -> ElemRange {
        ElemRange::up_to(match self.shape.collective {
            Collective::Exchange { .. } => 2 * self.shape.count,
            _ => self.shape.count,
        })
    }

    /// The ranges of the space of elements that `rank` has in `role`, ascending; a buffer for that role holds one
    /// after the other, without gaps. Ranges of both roles are the same memory where a collective works in place.
    ///
    /// The steps of a rank touch only its input and its output. Where its input is the larger of
    /// the two, in reduce-scatter and reduce, they work in the input.
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
    ///     count: 5,
    ///     chunk_elems_max: NonZeroUsize::new(64).unwrap(),
    ///     partition: Partition::Ragged([2, 3].into()),
    ///     hosts: Hosts::one(world_size),
    /// })?;
    /// assert_eq!(schedule.extent(Rank::new(1), Role::Input), [ElemRange::new(2, 5)]);
    /// assert_eq!(schedule.extent(Rank::new(1), Role::Output), [ElemRange::new(0, 5)]);
    /// # Ok::<(), bonfire_plan::PlanError>(())
    /// ```
    ///
    /// # Panics
    /// When `rank` is not a member of the world.
    pub fn extent(&self, rank: Rank, role: Role) -> Vec<ElemRange> {
        self.world_size().assert_member(rank);
        extent(&self.shape, rank, role)
    }

    /// What `rank` does, in order.
    ///
    /// # Panics
    /// When `rank` is not a member of the world.
    pub fn steps(&self, rank: Rank) -> Vec<Step> {
        self.world_size().assert_member(rank);
        let mut steps = Vec::new();
        algorithm::build(&self.shape, rank, &mut steps);
        steps
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (collective, algorithm) = (self.collective(), self.algorithm());
        let (world_size, count, most) = (self.world_size(), self.count(), self.chunk_elems_max());
        write!(
            formatter,
            "{collective} by {algorithm}: world size {world_size}, {count} elements, \
             chunks of at most {most}"
        )
    }
}

impl ScheduleShape {
    /// The same plan, written the one way that compares equal: hosts are forgotten where the
    /// algorithm does not look at them, and block lengths that are the balanced ones are not
    /// spelled out. [`Schedule::new`] does this; a cache of plans does it to its keys.
    pub fn normalized(self) -> Self {
        let looks_at_hosts = self.algorithm.looks_at_hosts();
        let hosts = if looks_at_hosts { self.hosts } else { Hosts::one(self.world_size) };
        Self { partition: self.partition.normalized(self.world_size), hosts, ..self }
    }

    /// A number that differs, but for a chance of one in 2^32, where block lengths or hosts differ;
    /// the same on every machine. 0 where blocks are balanced and all ranks are on one host.
    ///
    /// It is made of what is written, so two ranks compare it after [`ScheduleShape::normalized`].
    pub fn layout_hash(&self) -> u32 {
        let lengths: &[usize] = match &self.partition {
            Partition::Balanced => &[],
            Partition::Ragged(lengths) | Partition::Matrix(lengths) => lengths,
        };
        let lengths = lengths.iter().map(|&length| length as u64);
        // Behind a mark that no length has, so that lengths are not taken for hosts.
        let numbers = (self.hosts.host_count() > 1).then(|| self.hosts.numbers().map(u64::from));
        let marked = |numbers| std::iter::once(u64::MAX).chain(numbers);
        let hosts = numbers.into_iter().flat_map(marked);
        let mut words = 0;
        let bytes = lengths.chain(hosts).flat_map(|word| {
            words += 1;
            word.to_le_bytes()
        });
        let hash = fnv_1a(bytes);
        if words == 0 { 0 } else { hash.max(1) }
    }

    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        let (collective, algorithm) = (self.collective, self.algorithm);
        let (world_size, count) = (self.world_size, self.count);
        if !Algorithm::candidates(collective).contains(&algorithm) {
            return Err(PlanError::Unsupported { collective, algorithm });
        }
        let NamedRanks { first, second } = collective.named();
        let mut named = first.into_iter().chain(second);
        if let Some(root) = named.find(|&rank| !world_size.contains(rank)) {
            return Err(PlanError::RootOutOfRange { root, world_size });
        }
        match collective {
            Collective::Barrier if count > 0 => return Err(PlanError::BarrierWithData { count }),
            Collective::Transfer { source, target } if source == target => {
                return Err(PlanError::NotAPair { collective });
            }
            Collective::Exchange { first, second } if first >= second => {
                return Err(PlanError::NotAPair { collective });
            }
            Collective::Exchange { .. } if count.checked_mul(2).is_none() => {
                return Err(PlanError::TooManyElements { count });
            }
            _ => {}
        }
        let given = self.hosts.rank_count();
        if given != world_size.len() {
            return Err(PlanError::HostsLength { given, world_size });
        }
        if self.partition != Partition::Balanced && !algorithm.takes_partition(collective) {
            return Err(PlanError::UnsupportedPartition { collective });
        }
        self.partition.validate(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::one_of_each;

    fn shape(collective: Collective, algorithm: Algorithm) -> ScheduleShape {
        ScheduleShape {
            collective,
            algorithm,
            world_size: WorldSize::new(4).unwrap(),
            count: 0,
            chunk_elems_max: NonZeroUsize::MIN,
            partition: Partition::Balanced,
            hosts: Hosts::one(WorldSize::new(4).unwrap()),
        }
    }

    #[test]
    fn every_candidate_has_a_schedule_and_nothing_else_does() {
        for collective in one_of_each() {
            for &algorithm in Algorithm::ALL {
                let made = Schedule::new(shape(collective, algorithm));
                if Algorithm::candidates(collective).contains(&algorithm) {
                    let schedule = made.unwrap();
                    for rank in schedule.world_size().ranks() {
                        let is_idle = schedule.steps(rank).is_empty();
                        assert_eq!(is_idle, !collective.involves(rank), "{schedule}: {rank}");
                    }
                } else {
                    assert_eq!(made, Err(PlanError::Unsupported { collective, algorithm }));
                }
            }
        }
    }

    #[test]
    fn a_root_outside_the_world_is_refused() {
        let root = Rank::new(4);
        let error = Schedule::new(shape(Collective::Broadcast { root }, Algorithm::Binomial));
        let error = error.unwrap_err();
        let world_size = WorldSize::new(4).unwrap();
        assert_eq!(error, PlanError::RootOutOfRange { root, world_size });
        assert_eq!(
            error.to_string(),
            "root 4 is not a rank of a world of 4; ranks run from 0 to 3"
        );
    }

    #[test]
    fn a_barrier_with_data_is_refused() {
        let barrier = shape(Collective::Barrier, Algorithm::Dissemination);
        let error = Schedule::new(ScheduleShape { count: 1, ..barrier });
        assert_eq!(error, Err(PlanError::BarrierWithData { count: 1 }));
    }
}
