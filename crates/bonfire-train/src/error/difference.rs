//! Differences between the models of two ranks.

use bonfire_collective::Rank;

/// The first difference between the models of two ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{subject} is {} on rank {rank} but {} on rank {other_rank}; build the same model with the \
     same configuration on every rank",
    .found.as_deref().unwrap_or("missing"), .other_found.as_deref().unwrap_or("missing")
)]
pub struct Difference {
    /// The subject: `parameter` and its path, or a part of the configuration.
    pub subject: String,
    /// The rank that has this value.
    pub rank: Rank,
    /// The value of that rank; `None` if it is missing there.
    pub found: Option<String>,
    /// The rank that has the other value.
    pub other_rank: Rank,
    /// The value of the other rank; `None` if it is missing there.
    pub other_found: Option<String>,
}
