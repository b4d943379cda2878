//! The operations that can be measured: their names, buffers, and the factors of nccl-tests.
//!
//! What is called a block here is the part of a buffer that belongs to one rank; an operation that
//! moves whole buffers has one block.

use bonfire_collective::{CollectiveError, ProcessGroup, Rank, ReduceOp};
use clap::ValueEnum;

use super::data::Value;

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
    /// No data: returns once every rank has called it
    Barrier,
}

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    OutOfPlace,
    InPlace,
}

/// Where a block of a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// All ranks' inputs, reduced, from this block on.
    Fold { block: usize },
    /// One rank's input, from this block on.
    Copy { rank: usize, block: usize },
}

/// The ranks as one operation sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) me: usize,
    pub(super) ranks: usize,
    pub(super) root: usize,
}

/// The blocks of the buffers that one rank brings and ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) input: usize,
    pub(super) output: usize,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
        }
    }

    /// The forms that exist, in the order of the columns.
    pub(super) fn forms(self) -> &'static [Form] {
        match self {
            Self::AllReduce | Self::Broadcast | Self::Barrier => &[Form::InPlace],
            Self::ReduceScatter | Self::AllGather => &[Form::OutOfPlace],
        }
    }

    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }

    pub(super) fn has_root(self) -> bool {
        matches!(self, Self::Broadcast)
    }

    /// How many blocks a message has: its size is that of so many blocks.
    pub(super) fn blocks_per_message(self, ranks: usize) -> usize {
        match self {
            Self::AllReduce | Self::Broadcast => 1,
            Self::ReduceScatter | Self::AllGather => ranks,
            Self::Barrier => 0,
        }
    }

    /// The blocks of the buffers of a rank. In place, the output is in the input.
    pub(super) fn blocks(self, place: Place) -> Blocks {
        let (input, output) = match self {
            Self::AllReduce | Self::Broadcast => (1, 1),
            Self::ReduceScatter => (place.ranks, 1),
            Self::AllGather => (1, place.ranks),
            Self::Barrier => (0, 0),
        };
        Blocks { input, output }
    }

    /// Where a block of this rank's result comes from; `None` where the operation promises nothing.
    pub(super) fn origin(self, place: Place, block: usize) -> Option<Origin> {
        let Place { me, root, .. } = place;
        match self {
            Self::AllReduce => Some(Origin::Fold { block: 0 }),
            Self::ReduceScatter => Some(Origin::Fold { block: me }),
            Self::AllGather => Some(Origin::Copy {
                rank: block,
                block: 0,
            }),
            Self::Broadcast => Some(Origin::Copy {
                rank: root,
                block: 0,
            }),
            Self::Barrier => None,
        }
    }

    /// busbw / algbw, as nccl-tests has it: the bytes that must cross each rank's link, per byte of
    /// message, so that the result can be compared with the bandwidth of the hardware.
    pub(super) fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::ReduceScatter | Self::AllGather => share,
            Self::Broadcast => 1.0,
            Self::Barrier => 0.0,
        }
    }

    /// Performs it once. In place, `output` is not used.
    pub(super) fn perform<T: Value>(
        self,
        group: &ProcessGroup,
        parameters: Parameters,
        input: &mut [T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let Parameters { redop, root } = parameters;
        match self {
            Self::AllReduce => group.all_reduce(input, redop),
            Self::ReduceScatter => {
                output.copy_from_slice(&group.reduce_scatter(input, redop)?);
                Ok(())
            }
            Self::AllGather => {
                output.copy_from_slice(&group.all_gather(input)?);
                Ok(())
            }
            Self::Broadcast => group.broadcast(input, root),
            Self::Barrier => group.barrier(),
        }
    }
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out_of_place",
            Self::InPlace => "in_place",
        }
    }
}

/// What an operation is told besides its buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) redop: ReduceOp,
    pub(super) root: Rank,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_has_the_factors_of_nccl_tests() {
        let factors = |ranks| {
            Operation::value_variants()
                .iter()
                .map(|operation| (operation.name(), operation.bus_factor(ranks)))
                .collect::<Vec<_>>()
        };
        let expected = [
            ("all_reduce", 1.75),
            ("reduce_scatter", 0.875),
            ("all_gather", 0.875),
            ("broadcast", 1.0),
            ("barrier", 0.0),
        ];
        assert_eq!(factors(8), expected);
        assert_eq!(factors(1)[0], ("all_reduce", 0.0));
    }

    #[test]
    fn every_block_of_a_result_has_an_origin() {
        for &operation in Operation::value_variants() {
            for me in 0..4 {
                let place = Place {
                    me,
                    ranks: 4,
                    root: 2,
                };
                let blocks = operation.blocks(place);
                for block in 0..blocks.output {
                    match operation.origin(place, block) {
                        Some(Origin::Fold { block }) => assert!(block < blocks.input),
                        Some(Origin::Copy { rank, .. }) => assert!(rank < 4),
                        None => assert_ne!(me, place.root, "{}", operation.name()),
                    }
                }
            }
        }
    }
}
