//! How far the ranks have come in their data, for a checkpoint.

use serde::{Deserialize, Serialize};

use super::Order;

/// How far all ranks together have come in a data set. A checkpoint keeps it; the number of ranks
/// that go on from there may be another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// The epoch, from 0.
    pub epoch: u64,
    /// How many samples of the epoch's order have been seen.
    pub offset: usize,
    /// Of how many.
    len: usize,
    order: OrderState,
}

/// What an order depends on.
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
            Order::Weighted { seed, weights } => OrderState::Weighted {
                seed: *seed,
                weights: weights.digest(),
            },
        };
        Self {
            epoch,
            offset,
            len,
            order,
        }
    }

    /// Whether both speak of the same samples in the same order.
    pub(crate) fn same_data(&self, other: &Self) -> bool {
        (self.len, &self.order) == (other.len, &other.order)
    }
}

impl std::fmt::Display for SamplerState {
    /// The data that the state belongs to.
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
