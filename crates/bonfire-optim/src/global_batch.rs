//! The size of a step over all ranks, and the learning rate that goes with it.

use std::fmt;
use std::num::NonZeroUsize;

use bonfire_plan::WorldSize;
use serde::{Deserialize, Serialize};

/// The samples of one optimizer step, over all ranks and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalBatch {
    /// The number of ranks that train.
    pub world_size: WorldSize,
    /// Samples in one batch of one rank.
    pub batch_size: NonZeroUsize,
    /// Batches of a rank before the gradients are averaged; 1 without accumulation.
    pub accumulation: NonZeroUsize,
}

impl GlobalBatch {
    /// Returns the samples of a step, over all ranks.
    pub fn samples(&self) -> usize {
        self.world_size.len() * self.batch_size.get() * self.accumulation.get()
    }

    /// Returns the steps of an epoch of `len` samples, a last partial one included.
    pub fn steps_per_epoch(&self, len: usize) -> usize {
        len.div_ceil(self.samples())
    }
}

impl fmt::Display for GlobalBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, batch) = (self.world_size.len(), self.batch_size);
        let (accumulation, samples) = (self.accumulation, self.samples());
        let plural = if ranks == 1 { "rank" } else { "ranks" };
        write!(
            f,
            "{ranks} {plural} × batch {batch} × accumulation {accumulation} = global batch {samples}"
        )
    }
}

/// Scales a learning rate from one global batch to another. There is no default: a rate that changes by itself with
/// the number of ranks surprises, and so does one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RateRule {
    /// Keeps the rate for every batch size.
    None,
    /// In proportion, for SGD (Goyal et al. 2017).
    Linear {
        /// The global batch that the rate was found for.
        reference: NonZeroUsize,
    },
    /// With the square root of the ratio, for Adam and its like (Malladi et al. 2022).
    Sqrt {
        /// The global batch that the rate was found for.
        reference: NonZeroUsize,
    },
}

impl RateRule {
    /// Returns the factor of the learning rate.
    pub fn factor(self, batch: GlobalBatch) -> f64 {
        let ratio = |reference: NonZeroUsize| batch.samples() as f64 / reference.get() as f64;
        match self {
            Self::None => 1.0,
            Self::Linear { reference } => ratio(reference),
            Self::Sqrt { reference } => ratio(reference).sqrt(),
        }
    }

    /// Returns one line for the start of a run: ranks, batches, steps of an epoch of `len` samples, and the rate that
    /// follows from `base`.
    pub fn headline(self, batch: GlobalBatch, len: usize, base: f64) -> String {
        let steps = batch.steps_per_epoch(len);
        let rate = base * self.factor(batch);
        let how = match self {
            Self::None => String::new(),
            Self::Linear { reference } => {
                format!(" ({base} × {} / {reference})", batch.samples())
            }
            Self::Sqrt { reference } => {
                format!(" ({base} × √({} / {reference}))", batch.samples())
            }
        };
        format!("{batch}; {steps} steps per epoch; learning rate {rate}{how}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(value: usize) -> NonZeroUsize {
        NonZeroUsize::new(value).unwrap()
    }

    fn batch(ranks: u32, batch_size: usize, accumulation: usize) -> GlobalBatch {
        GlobalBatch {
            world_size: WorldSize::new(ranks).unwrap(),
            batch_size: some(batch_size),
            accumulation: some(accumulation),
        }
    }

    #[test]
    fn rates_follow_their_rule() {
        let batch = batch(4, 32, 2);
        let reference = some(64);
        assert_eq!(RateRule::None.factor(batch), 1.0);
        assert_eq!(RateRule::Linear { reference }.factor(batch), 4.0);
        assert_eq!(RateRule::Sqrt { reference }.factor(batch), 2.0);
    }

    /// ImageNet on 8 ranks with 256 each, and 32 with 32 each.
    #[test]
    fn an_epoch_has_the_steps_of_the_tutorials() {
        assert_eq!(batch(8, 256, 1).steps_per_epoch(1_281_167), 626);
        assert_eq!(batch(32, 256, 1).steps_per_epoch(1_281_167), 157);
        assert_eq!(batch(2, 5, 1).steps_per_epoch(0), 0);
    }

    #[test]
    fn the_headline_says_how_the_rate_came_about() {
        let linear = RateRule::Linear { reference: some(16) };
        assert_eq!(
            linear.headline(batch(2, 16, 2), 2048, 0.25),
            "2 ranks × batch 16 × accumulation 2 = global batch 64; 32 steps per epoch; learning \
             rate 1 (0.25 × 64 / 16)"
        );
        assert_eq!(
            RateRule::None.headline(batch(1, 8, 1), 9, 0.5),
            "1 rank × batch 8 × accumulation 1 = global batch 8; 2 steps per epoch; learning rate 0.5"
        );
    }
}
