//! Why a plan cannot be built.

use crate::{Algorithm, Collective, Rank, WorldSize};

/// A request that no plan can satisfy. The caller is at fault; nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A world without ranks.
    #[error("a world needs at least one rank; set the world size to 1 or more")]
    EmptyWorld,
    /// A root that is not a member of the world.
    #[error(
        "root {root} is not a rank of a world of {world_size}; ranks run from 0 to {}",
        world_size.get() - 1
    )]
    RootOutOfRange {
        /// The root that was asked for.
        root: Rank,
        /// The size of the world it should belong to.
        world_size: WorldSize,
    },
    /// An algorithm that does not implement the collective.
    #[error(
        "the {algorithm} algorithm does not implement {collective}; use {}",
        alternatives(*collective)
    )]
    Unsupported {
        /// The collective that was asked for.
        collective: Collective,
        /// The algorithm that does not implement it.
        algorithm: Algorithm,
    },
    /// A barrier that was asked to move data.
    #[error("a barrier moves no data, but its count is {count}; set the count to 0")]
    BarrierWithData {
        /// The element count that was asked for.
        count: usize,
    },
    /// A name that is not in the list.
    #[error("unknown {kind} `{given}`; use one of: {expected}")]
    UnknownName {
        /// What the name was to denote, such as `dtype`.
        kind: &'static str,
        /// The text that was given.
        given: String,
        /// The accepted names, separated by commas.
        expected: String,
    },
}

fn alternatives(collective: Collective) -> String {
    let names: Vec<_> = Algorithm::candidates(collective)
        .iter()
        .map(|algorithm| algorithm.name())
        .collect();
    names.join(" or ")
}
