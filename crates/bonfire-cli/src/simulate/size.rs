//! How large an operation that is simulated is, and which plan is taken for one that was measured.

use bonfire_plan::{Algorithm, DType, Rank, WorldSize};

use crate::operation::Operation;

#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// What a user calls the size: of a whole buffer, as nccl-tests counts it.
    pub(super) bytes: usize,
    pub(super) count: usize,
}

impl Operation {
    /// The buffers for a size of about `bytes`: whole elements, and in an all-to-all whole blocks.
    pub(super) fn size(self, bytes: usize, dtype: DType, world_size: WorldSize) -> Size {
        let (elem, ranks) = (dtype.size_bytes(), world_size.len());
        match self {
            Self::Barrier => Size { bytes: 0, count: 0 },
            Self::AllToAll => {
                let block = (bytes / elem).div_ceil(ranks).max(1);
                // What is too large to count is too large to simulate, and refused there.
                let block =
                    block.min(usize::MAX / ranks.saturating_mul(ranks).saturating_mul(elem));
                Size { bytes: block * ranks * elem, count: block * ranks * ranks }
            }
            _ => {
                let count = (bytes / elem).max(1);
                Size { bytes: count * elem, count }
            }
        }
    }

    /// What a measurement is taken for that does not say which algorithm ran: the one that Bonfire
    /// runs for all but the smallest sizes.
    pub(super) fn usual_algorithm(self) -> Algorithm {
        let candidates = Algorithm::candidates(self.collective(Rank::new(0)));
        let usual = |wanted| candidates.iter().copied().find(|&name| name == wanted);
        usual(Algorithm::TwoShot).or_else(|| usual(Algorithm::OneShot)).unwrap_or(candidates[0])
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

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
