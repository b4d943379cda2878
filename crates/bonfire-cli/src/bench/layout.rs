//! Where the data of an operation that is measured lies, and how it is performed.
//!
//! What is called a block here is the part of a buffer that belongs to one rank; an operation that
//! moves whole buffers has one block.

use bonfire_collective::{CollectiveError, ProcessGroup, Rank, ReduceOp};
use clap::ValueEnum;

use super::data::Value;
use crate::operation::Operation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// To a buffer of its own
    OutOfPlace,
    /// Into the buffer of the input
    InPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// All ranks' inputs, reduced, from this block on.
    Fold { block: usize },
    /// One rank's input, from this block on.
    Copy { rank: usize, block: usize },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) me: usize,
    pub(super) ranks: usize,
    pub(super) root: usize,
}

/// The blocks of a rank's input and output: how many, or which are the first in the buffer of an operation in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) input: usize,
    pub(super) output: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) redop: ReduceOp,
    pub(super) root: Rank,
}

impl Place {
    fn is_root(self) -> bool {
        self.me == self.root
    }

    /// Whom this rank exchanges data with; the last of an odd number of ranks has nobody.
    pub(super) fn peer(self) -> Option<usize> {
        Some(self.me ^ 1).filter(|peer| *peer < self.ranks)
    }
}

impl Operation {
    /// The forms that exist, in the order of the columns.
    pub(super) fn forms(self) -> &'static [Form] {
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::AllGather | Self::AllToAll => {
                &[Form::OutOfPlace, Form::InPlace]
            }
            Self::Gather | Self::Scatter | Self::SendRecv => &[Form::OutOfPlace],
            Self::Broadcast | Self::Reduce | Self::Barrier => &[Form::InPlace],
        }
    }

    pub(super) fn takes_part(self, place: Place) -> bool {
        self != Self::SendRecv || place.peer().is_some()
    }

    pub(super) fn blocks(self, place: Place) -> Blocks {
        let all = place.ranks;
        let of_root = if place.is_root() { all } else { 0 };
        let of_pair = usize::from(place.peer().is_some());
        let (input, output) = match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce => (1, 1),
            Self::ReduceScatter => (all, 1),
            Self::AllGather => (1, all),
            Self::Gather => (1, of_root),
            Self::Scatter => (of_root, 1),
            Self::AllToAll => (all, all),
            Self::SendRecv => (of_pair, of_pair),
            Self::Barrier => (0, 0),
        };
        Blocks { input, output }
    }

    /// Where input and output start in the one buffer of an operation in place.
    pub(super) fn starts(self, place: Place) -> Blocks {
        let (input, output) = match self {
            Self::ReduceScatter | Self::Scatter => (0, place.me),
            Self::AllGather | Self::Gather => (place.me, 0),
            _ => (0, 0),
        };
        Blocks { input, output }
    }

    /// Where a block of this rank's result comes from; `None` where the operation promises nothing.
    pub(super) fn origin(self, place: Place, block: usize) -> Option<Origin> {
        let Place { me, root, .. } = place;
        let copy = |rank, block| Some(Origin::Copy { rank, block });
        match self {
            Self::AllReduce => Some(Origin::Fold { block: 0 }),
            Self::Reduce => place.is_root().then_some(Origin::Fold { block: 0 }),
            Self::ReduceScatter => Some(Origin::Fold { block: me }),
            Self::AllGather | Self::Gather => copy(block, 0),
            Self::Broadcast => copy(root, 0),
            Self::Scatter => copy(root, me),
            Self::AllToAll => copy(block, me),
            Self::SendRecv => copy(place.peer()?, 0),
            Self::Barrier => None,
        }
    }

    pub(super) fn perform_in_place<T: Value>(
        self,
        group: &ProcessGroup,
        parameters: Parameters,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        let Parameters { redop, root } = parameters;
        match self {
            Self::AllReduce => group.all_reduce(data, redop),
            Self::ReduceScatter => group.reduce_scatter_in_place(data, redop),
            Self::AllGather => group.all_gather_in_place(data),
            Self::AllToAll => group.all_to_all(data),
            Self::Broadcast => group.broadcast(data, root),
            Self::Reduce => group.reduce(data, root, redop),
            Self::Barrier => group.barrier(),
            Self::Gather | Self::Scatter | Self::SendRecv => {
                unreachable!("forms() does not list {} in place", self.name())
            }
        }
    }

    pub(super) fn perform<T: Value>(
        self,
        group: &ProcessGroup,
        parameters: Parameters,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let Parameters { redop, root } = parameters;
        match self {
            Self::AllReduce => group.all_reduce_into(input, output, redop),
            Self::ReduceScatter => group.reduce_scatter_into(input, output, redop),
            Self::AllGather => group.all_gather_into(input, output),
            Self::AllToAll => group.all_to_all_into(input, output),
            Self::Gather => group.gather_into(input, output, root),
            Self::Scatter => group.scatter_into(input, output, root),
            Self::SendRecv => {
                let peer = Rank::new(group.rank().get() ^ 1);
                if !group.world_size().contains(peer) {
                    return Ok(());
                }
                group.exchange(peer, input, output)
            }
            Self::Broadcast | Self::Reduce | Self::Barrier => {
                unreachable!("forms() does not list {} out of place", self.name())
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_a_result_comes_from_an_input() {
        for &operation in Operation::value_variants() {
            for me in 0..5 {
                let place = Place { me, ranks: 5, root: 2 };
                let outputs = operation.blocks(place).output;
                for block in 0..outputs {
                    let (from, block) = match operation.origin(place, block) {
                        Some(Origin::Fold { block }) => (me, block),
                        Some(Origin::Copy { rank, block }) => (rank, block),
                        None => {
                            assert_eq!(operation, Operation::Reduce);
                            assert_ne!(me, place.root);
                            continue;
                        }
                    };
                    let brought = operation.blocks(Place { me: from, ..place }).input;
                    assert!(block < brought, "{} from rank {from}", operation.name());
                }
            }
        }
    }

    #[test]
    fn in_place_input_and_output_are_parts_of_one_buffer() {
        for &operation in Operation::value_variants() {
            for me in 0..4 {
                let place = Place { me, ranks: 4, root: 0 };
                if !operation.forms().contains(&Form::InPlace) {
                    continue;
                }
                let (blocks, starts) = (operation.blocks(place), operation.starts(place));
                let len = blocks.input.max(blocks.output);
                assert!(starts.input + blocks.input <= len, "{}", operation.name());
                assert!(starts.output + blocks.output <= len, "{}", operation.name());
            }
        }
    }
}
