//! Why a plan cannot be built.

use super::names::joined;
use crate::{Algorithm, Collective, DType, Rank, ReduceOp, WorldSize};

/// A request that no plan can satisfy. The caller is at fault; nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A world size of 0, which [`WorldSize::new`] refuses.
    #[error("a world needs at least one rank; set the world size to 1 or more")]
    EmptyWorld,
    /// A root, or another rank that the collective names, outside the world.
    #[error(
        "root {root} is not a rank of a world of {world_size}; ranks run from 0 to {}",
        world_size.get() - 1
    )]
    RootOutOfRange {
        /// The first rank outside the world that the collective names.
        root: Rank,
        /// The number of ranks; all of them are below it.
        world_size: WorldSize,
    },
    /// An algorithm that is not among [`Algorithm::candidates`] of the collective.
    #[error(
        "the {algorithm} algorithm does not implement {collective}; use {}",
        joined(Algorithm::candidates(*collective), " or ")
    )]
    Unsupported {
        /// What was asked for, with its root or pair.
        collective: Collective,
        /// The choice that has no plan for it.
        algorithm: Algorithm,
    },
    /// A barrier whose shape has elements.
    #[error("a barrier moves no data, but its count is {count}; set the count to 0")]
    BarrierWithData {
        /// Elements of the shape, of which a barrier has 0.
        count: usize,
    },
    /// Two ranks that are to meet, but are one and the same, or in the wrong order.
    #[error(
        "{collective} names two different ranks, of which an exchange names the lower one first"
    )]
    NotAPair {
        /// The transfer or exchange, with the two ranks that it names.
        collective: Collective,
    },
    /// A bit operation on floats, or a sum or mean of truth values.
    #[error("{op} does not reduce {dtype}; use one of: {}", reductions(*dtype))]
    UnsupportedReduce {
        /// The operation that these elements do not have.
        op: ReduceOp,
        /// The type of elements, whose operations the message lists.
        dtype: DType,
    },
    /// Block lengths for a collective whose division is fixed, or a matrix where a list is due.
    #[error(
        "{collective} takes no such block lengths here; all_gather, reduce_scatter, gather and \
         scatter take one per rank by any algorithm but zero_copy, all_to_all one per ordered pair"
    )]
    UnsupportedPartition {
        /// The operation for which the block lengths were given.
        collective: Collective,
    },
    /// Too few or too many block lengths.
    #[error("{given} block lengths were given where {expected} are due")]
    PartitionLength {
        /// Entries in the list of block lengths.
        given: usize,
        /// The number of ranks; of an all-to-all, its square.
        expected: usize,
    },
    /// Block lengths whose sum is not the number of elements.
    #[error(
        "the block lengths add up to {}, not to the count of {count}; give their sum as the count",
        sum.map_or("more than the address space".to_owned(), |sum| sum.to_string())
    )]
    PartitionSum {
        /// Their sum; `None` when it overflows.
        sum: Option<usize>,
        /// Elements of the shape, which the blocks divide among the ranks.
        count: usize,
    },
    /// Of an all-to-all, and of an exchange between GPUs.
    #[error(
        "{count} elements are not {blocks} equal blocks; pad them, or give the length of each block"
    )]
    UnequalBlocks {
        /// Elements of all blocks together.
        count: usize,
        /// The square of the number of ranks; of an exchange, 2.
        blocks: usize,
    },
    /// Hosts for more or fewer ranks than there are.
    #[error("hosts are given for {given} ranks in a world of {world_size}; give one per rank")]
    HostsLength {
        /// Ranks that have an entry in the list of hosts.
        given: usize,
        /// The number of ranks of the shape.
        world_size: WorldSize,
    },
    /// An exchange whose two buffers together overflow `usize`.
    #[error("{count} elements on each of two ranks are more than the address space holds")]
    TooManyElements {
        /// Elements in the buffer of one of the two ranks.
        count: usize,
    },
}

fn reductions(dtype: DType) -> String {
    let supported = ReduceOp::ALL.iter().filter(|op| op.supports(dtype));
    joined(&supported.collect::<Vec<_>>(), ", ")
}
