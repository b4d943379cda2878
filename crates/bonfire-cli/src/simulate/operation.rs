//! The operations that can be simulated: their plans, sizes, and the factors of nccl-tests.

use bonfire_plan::{Algorithm, Collective, DType, Rank, WorldSize};
use clap::ValueEnum;

/// An operation of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Operation {
    /// Every rank ends with the reduction of all ranks' data
    AllReduce,
    /// Every rank ends with its block of that reduction
    ReduceScatter,
    /// Every rank ends with the blocks of all ranks
    AllGather,
    /// Every rank ends with the data of the root
    Broadcast,
    /// The root ends with the reduction of all ranks' data
    Reduce,
    /// The root ends with the blocks of all ranks
    Gather,
    /// Every rank ends with its block of the root's data
    Scatter,
    /// Every rank ends with one block of every rank
    AllToAll,
    /// No data: no rank leaves before all have come
    Barrier,
}

/// The buffers of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// What a user calls the size: of a whole buffer, as nccl-tests counts it.
    pub(super) bytes: usize,
    /// The elements of all blocks together.
    pub(super) count: usize,
}

impl Operation {
    /// The operation with this name, with `_` or `-`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::from_str(&name.replace('_', "-"), true).ok()
    }

    pub(super) const fn collective(self, root: Rank) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllGather => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast { root },
            Self::Reduce => Collective::Reduce { root },
            Self::Gather => Collective::Gather { root },
            Self::Scatter => Collective::Scatter { root },
            Self::AllToAll => Collective::AllToAll,
            Self::Barrier => Collective::Barrier,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        self.collective(Rank::new(0)).name()
    }

    /// The buffers for a size of about `bytes`: whole elements, and in an all-to-all whole blocks.
    pub(super) fn size(self, bytes: usize, dtype: DType, world_size: WorldSize) -> Size {
        let (elem, ranks) = (dtype.size_bytes(), world_size.len());
        match self {
            Self::Barrier => Size { bytes: 0, count: 0 },
            Self::AllToAll => {
                let block = (bytes / elem).div_ceil(ranks).max(1);
                Size {
                    bytes: block * ranks * elem,
                    count: block * ranks * ranks,
                }
            }
            _ => {
                let count = (bytes / elem).max(1);
                Size {
                    bytes: count * elem,
                    count,
                }
            }
        }
    }

    /// busbw / algbw, as nccl-tests has it.
    pub(super) fn bus_factor(self, world_size: WorldSize) -> f64 {
        let ranks = f64::from(world_size.get());
        let share = (ranks - 1.0) / ranks;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::ReduceScatter
            | Self::AllGather
            | Self::Gather
            | Self::Scatter
            | Self::AllToAll => share,
            Self::Broadcast | Self::Reduce => 1.0,
            Self::Barrier => 0.0,
        }
    }

    /// What a measurement is taken for that does not say which algorithm ran: the one that Bonfire
    /// runs for all but the smallest sizes.
    pub(super) fn usual_algorithm(self) -> Algorithm {
        let candidates = Algorithm::candidates(self.collective(Rank::new(0)));
        let usual = |wanted| candidates.iter().copied().find(|&name| name == wanted);
        usual(Algorithm::TwoShot)
            .or_else(|| usual(Algorithm::OneShot))
            .unwrap_or(candidates[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_its_name() {
        for &operation in Operation::value_variants() {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
        assert_eq!(
            Operation::from_name("all-reduce"),
            Some(Operation::AllReduce)
        );
        assert_eq!(Operation::from_name("reduce_all"), None);
    }

    #[test]
    fn sizes_are_whole_elements_and_blocks() {
        let world_size = WorldSize::new(3).unwrap();
        let size = |operation: Operation| {
            let size = operation.size(100, DType::F64, world_size);
            (size.bytes, size.count)
        };
        assert_eq!(size(Operation::AllReduce), (96, 12));
        assert_eq!(size(Operation::AllToAll), (96, 36));
        assert_eq!(size(Operation::Barrier), (0, 0));
        let one = Operation::AllToAll.size(1, DType::F64, world_size);
        assert_eq!((one.bytes, one.count), (24, 9));
    }

    #[test]
    fn the_usual_algorithm_is_one_of_those_there_are() {
        for &operation in Operation::value_variants() {
            let candidates = Algorithm::candidates(operation.collective(Rank::new(0)));
            assert!(candidates.contains(&operation.usual_algorithm()));
        }
        let usual = Operation::AllReduce.usual_algorithm();
        assert_eq!(usual, Algorithm::TwoShot);
    }
}
