//! Errors of ranks that normalise their batches together.

use std::fmt;

use bonfire_collective::Rank;

/// Ranks that normalise together are at different layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} is in the {pass}, but rank {other_rank} in the {other_pass}; run the same batch \
     norm layers in the same order on every rank"
)]
pub struct NormMismatch {
    pub(crate) rank: Rank,
    pub(crate) pass: Pass,
    pub(crate) other_rank: Rank,
    pub(crate) other_pass: Pass,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) name: &'static str,
    pub(crate) features: usize,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of a layer of {} features", self.name, self.features)
    }
}
