//! The choice of a plan, and the steps it gives each rank.

use std::fmt;
use std::num::NonZeroUsize;

use crate::{
    Algorithm, Collective, ElemRange, PlanError, Rank, Step, WorldSize, binomial, chunks, direct,
    dissemination, ring, shard_range,
};

/// Everything that determines a plan. Ranks that agree on it agree on every frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScheduleShape {
    /// The operation.
    pub collective: Collective,
    /// The algorithm that performs it.
    pub algorithm: Algorithm,
    /// The number of ranks that take part.
    pub world_size: WorldSize,
    /// The elements of every rank's buffer; 0 for a barrier.
    pub count: usize,
    /// The most elements that one frame carries.
    pub chunk_elems_max: NonZeroUsize,
}

/// A plan that exists for its shape: what every rank does, computed on demand.
///
/// No schedule deadlocks, even with one slot for each ordered pair of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Schedule {
    shape: ScheduleShape,
}

impl Schedule {
    /// The plan for this shape.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] when the algorithm does not implement the collective,
    /// [`PlanError::RootOutOfRange`] when the root is not in the world, and
    /// [`PlanError::BarrierWithData`] when a barrier has elements.
    pub fn new(shape: ScheduleShape) -> Result<Self, PlanError> {
        let ScheduleShape {
            collective,
            algorithm,
            world_size,
            count,
            ..
        } = shape;
        if !Algorithm::candidates(collective).contains(&algorithm) {
            return Err(PlanError::Unsupported {
                collective,
                algorithm,
            });
        }
        if let Some(root) = collective.root().filter(|&root| !world_size.contains(root)) {
            return Err(PlanError::RootOutOfRange { root, world_size });
        }
        if collective == Collective::Barrier && count > 0 {
            return Err(PlanError::BarrierWithData { count });
        }
        Ok(Self { shape })
    }

    /// What the plan was made for.
    pub const fn shape(&self) -> ScheduleShape {
        self.shape
    }

    /// The operation.
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

    /// What `rank` does, in order.
    ///
    /// # Panics
    /// When `rank` is not a member of the world.
    pub fn steps(&self, rank: Rank) -> Vec<Step> {
        let world_size = self.world_size();
        assert!(
            world_size.contains(rank),
            "rank {rank} is not a member of a world of {world_size}"
        );
        let shape = &self.shape;
        let mut steps = Vec::new();
        match (shape.collective, shape.algorithm) {
            (Collective::AllReduce, Algorithm::Ring) => {
                ring::reduce_scatter(shape, rank, &mut steps);
                ring::all_gather(shape, rank, &mut steps);
            }
            (Collective::AllReduce, Algorithm::OneShot) => {
                direct::all_reduce(shape, rank, &mut steps);
            }
            (Collective::AllReduce, Algorithm::TwoShot) => {
                direct::reduce_scatter(shape, rank, &mut steps);
                direct::all_gather(shape, rank, &mut steps);
            }
            (Collective::ReduceScatter, Algorithm::Ring) => {
                ring::reduce_scatter(shape, rank, &mut steps);
            }
            (Collective::ReduceScatter, Algorithm::OneShot) => {
                direct::reduce_scatter(shape, rank, &mut steps);
            }
            (Collective::AllGather, Algorithm::Ring) => {
                ring::all_gather(shape, rank, &mut steps);
            }
            (Collective::AllGather, Algorithm::OneShot) => {
                direct::all_gather(shape, rank, &mut steps);
            }
            (Collective::Broadcast { root }, Algorithm::Binomial) => {
                binomial::broadcast(shape, binomial::Place { root, rank }, &mut steps);
            }
            (Collective::Barrier, Algorithm::Dissemination) => {
                dissemination::barrier(shape, rank, &mut steps);
            }
            (collective, algorithm) => {
                unreachable!("Schedule::new refuses {collective} by {algorithm}")
            }
        }
        steps
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScheduleShape {
            collective,
            algorithm,
            world_size,
            count,
            chunk_elems_max,
        } = self.shape;
        write!(
            formatter,
            "{collective} by {algorithm}: world size {world_size}, {count} elements, \
             chunks of at most {chunk_elems_max}"
        )
    }
}

impl ScheduleShape {
    /// The chunks of the shard that `rank` owns.
    pub(crate) fn shard_chunks(
        &self,
        rank: Rank,
    ) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
        chunks(
            shard_range(self.count, self.world_size, rank),
            self.chunk_elems_max,
        )
    }

    /// The chunks of the whole buffer.
    pub(crate) fn buffer_chunks(&self) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
        chunks(ElemRange::up_to(self.count), self.chunk_elems_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(collective: Collective, algorithm: Algorithm) -> ScheduleShape {
        ScheduleShape {
            collective,
            algorithm,
            world_size: WorldSize::new(4).unwrap(),
            count: 0,
            chunk_elems_max: NonZeroUsize::MIN,
        }
    }

    #[test]
    fn every_candidate_has_a_schedule_and_nothing_else_does() {
        let root = Rank::new(3);
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Barrier,
        ] {
            for &algorithm in Algorithm::ALL {
                let made = Schedule::new(shape(collective, algorithm));
                if Algorithm::candidates(collective).contains(&algorithm) {
                    let schedule = made.unwrap();
                    assert!(!schedule.steps(root).is_empty());
                } else {
                    assert_eq!(
                        made,
                        Err(PlanError::Unsupported {
                            collective,
                            algorithm
                        })
                    );
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
        let error = Schedule::new(ScheduleShape {
            count: 1,
            ..barrier
        });
        assert_eq!(error, Err(PlanError::BarrierWithData { count: 1 }));
    }
}
