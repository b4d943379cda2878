//! Which checkpoints there are, and which are kept.

use serde::{Deserialize, Serialize};

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keep {
    /// The last so many, at least one.
    pub last: usize,
    /// And the best of all.
    pub best: Option<Best>,
}

impl Keep {
    /// The last so many, at least one.
    #[must_use]
    pub const fn last(last: usize) -> Self {
        Self { last, best: None }
    }

    /// And the best of all.
    #[must_use]
    pub const fn and_best(self, best: Best) -> Self {
        Self {
            best: Some(best),
            ..self
        }
    }
}

impl Default for Keep {
    /// The last three.
    fn default() -> Self {
        Self::last(3)
    }
}

/// What makes one [`Milestone::metric`] better than another. A metric that is no number is worse
/// than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// Such as a loss.
    Lowest,
    /// Such as an accuracy.
    Highest,
}

/// Where a training is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Milestone {
    /// Optimizer steps done.
    pub step: u64,
    /// What [`Best`] compares; the same on every rank.
    pub metric: Option<f64>,
}
