//! The steps of checkpoints, and the choice of those that are kept.

use serde::{Deserialize, Serialize};

/// Selects the checkpoints that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keep {
    /// Keeps the last `last`, at least one.
    pub last: usize,
    /// Keeps the best of all as well.
    pub best: Option<Best>,
}

impl Keep {
    /// Keeps the last `last`, at least one.
    #[must_use]
    pub const fn last(last: usize) -> Self {
        Self { last, best: None }
    }

    /// Keeps the best of all as well.
    #[must_use]
    pub const fn and_best(self, best: Best) -> Self {
        Self { best: Some(best), ..self }
    }
}

impl Default for Keep {
    fn default() -> Self {
        Self::last(3)
    }
}

/// The order of [`Milestone::metric`]. A NaN is worse than any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// Lowest value, as for a loss.
    Lowest,
    /// Highest value, as for an accuracy.
    Highest,
}

/// The position of a training: step and metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Milestone {
    /// The number of optimizer steps done.
    pub step: u64,
    /// The value that [`Best`] compares; the same on every rank.
    pub metric: Option<f64>,
}
