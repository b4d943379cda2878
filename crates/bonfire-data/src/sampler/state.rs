//! The progress of the ranks in their data, for a checkpoint.

use serde::{Deserialize, Serialize};

use super::Order;

/// The progress of all ranks together in a data set. A checkpoint keeps it; the number of ranks that continue may
/// differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The number of samples of the epoch's order that have been seen.
    pub offset: usize,
    len: usize,
    order: OrderState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OrderState {
    Sequential,
    Shuffled { seed: u64 },
    Weighted { seed: u64, weights: String },
}

impl SamplerState {
    pub(super) fn new(len: usize, order: &Order, epoch: u64, offset: usize) -> Self {
        let order = match order {
            Order::Sequential => OrderState::Sequential,
            Order::Shuffled { seed } => OrderState::Shuffled { seed: *seed },
            Order::Weighted { seed, weights } => {
                OrderState::Weighted { seed: *seed, weights: weights.digest() }
            }
        };
        Self { epoch, offset, len, order }
    }

    /// Compares data set and order, not progress.
    pub(crate) fn same_data(&self, other: &Self) -> bool {
        (self.len, &self.order) == (other.len, &other.order)
    }
}

impl std::fmt::Display for SamplerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let len = self.len;
        match &self.order {
            OrderState::Sequential => write!(f, "{len} samples in their own order"),
            OrderState::Shuffled { seed } => write!(f, "{len} samples shuffled with seed {seed}"),
            OrderState::Weighted { seed, weights } => {
                let digest = weights.get(..8).unwrap_or(weights);
                write!(f, "{len} draws with seed {seed} and weights {digest}")
            }
        }
    }
}
