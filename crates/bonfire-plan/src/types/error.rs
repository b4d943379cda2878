//! Why a plan cannot be built.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use super::names::joined;
use crate::{Algorithm, Collective, DType, Rank, ReduceOp, WorldSize};

/// A request that no plan can satisfy. The caller is at fault; nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    #[error("a world needs at least one rank; set the world size to 1 or more")]
    EmptyWorld,
    #[error(
        "root {root} is not a rank of a world of {world_size}; ranks run from 0 to {}",
        world_size.get() - 1
    )]
    RootOutOfRange { root: Rank, world_size: WorldSize },
    #[error(
        "the {algorithm} algorithm does not implement {collective}; use {}",
        joined(Algorithm::candidates(*collective), " or ")
    )]
    Unsupported { collective: Collective, algorithm: Algorithm },
    #[error("a barrier moves no data, but its count is {count}; set the count to 0")]
    BarrierWithData { count: usize },
    /// Two ranks that are to meet, but are one and the same, or in the wrong order.
    #[error(
        "{collective} names two different ranks, of which an exchange names the lower one first"
    )]
    NotAPair { collective: Collective },
    #[error("{op} does not reduce {dtype}; use one of: {}", reductions(*dtype))]
    UnsupportedReduce { op: ReduceOp, dtype: DType },
    /// Block lengths for a collective whose division is fixed, or a matrix where a list is due.
    #[error(
        "{collective} takes no such block lengths here; all_gather, reduce_scatter, gather and \
         scatter take one per rank by any algorithm but zero_copy, all_to_all one per ordered pair"
    )]
    UnsupportedPartition { collective: Collective },
    #[error("{given} block lengths were given where {expected} are due")]
    PartitionLength { given: usize, expected: usize },
    #[error(
        "the block lengths add up to {}, not to the count of {count}; give their sum as the count",
        sum.map_or("more than the address space".to_owned(), |sum| sum.to_string())
    )]
    PartitionSum {
        /// Their sum; `None` when it overflows.
        sum: Option<usize>,
        count: usize,
    },
    /// Of an all-to-all.
    #[error(
        "{count} elements are not {blocks} equal blocks; pad them, or give the length of each block"
    )]
    UnequalBlocks { count: usize, blocks: usize },
    #[error("hosts are given for {given} ranks in a world of {world_size}; give one per rank")]
    HostsLength { given: usize, world_size: WorldSize },
    #[error("{count} elements on each of two ranks are more than the address space holds")]
    TooManyElements { count: usize },
}

fn reductions(dtype: DType) -> String {
    let supported = ReduceOp::ALL.iter().filter(|op| op.supports(dtype));
    joined(&supported.collect::<Vec<_>>(), ", ")
}
