//! What can differ between the models of two ranks.

use bonfire_collective::Rank;

/// The first difference between the models of two ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{subject} is {} on rank {rank} but {} on rank {other_rank}; build the same model with the \
     same configuration on every rank",
    .found.as_deref().unwrap_or("missing"), .other_found.as_deref().unwrap_or("missing")
)]
pub struct Difference {
    /// What differs: `parameter` and its path, or a part of the configuration.
    pub subject: String,
    /// One of the ranks.
    pub rank: Rank,
    /// What it has; nothing if it is missing there.
    pub found: Option<String>,
    /// The other rank.
    pub other_rank: Rank,
    /// What that has.
    pub other_found: Option<String>,
}
