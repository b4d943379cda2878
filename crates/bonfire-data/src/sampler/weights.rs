//! Weights of samples that are drawn at random.

use std::sync::Arc;

use rand::Rng;
use ring::digest::{Context, SHA256};

use crate::random::unit;

/// One weight per sample; a sample of weight 2 is drawn twice as often as one of weight 1. Clones share their memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleWeights {
    /// The sum of the weights up to and with each sample.
    cumulative: Arc<[f64]>,
}

/// Weights that do not define a distribution.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableWeights {
    /// A weight is negative, infinite or NaN.
    #[error("sample {index} has the weight {weight}; give a finite number that is not negative")]
    NotAWeight {
        /// The index of the sample.
        index: usize,
        /// The weight of the sample.
        weight: f64,
    },
    /// All weights are 0, or their sum is infinite.
    #[error("the weights add up to {sum}; at least one must be above 0, and their sum finite")]
    NoSum {
        /// The sum of all weights.
        sum: f64,
    },
}

impl SampleWeights {
    /// Takes the weights of the samples 0, 1, 2 and so on; they need not add up to one.
    ///
    /// # Errors
    /// [`UnusableWeights`].
    pub fn new(weights: &[f64]) -> Result<Self, UnusableWeights> {
        let mut sum = 0.0;
        let mut cumulative = Vec::with_capacity(weights.len());
        for (index, &weight) in weights.iter().enumerate() {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(UnusableWeights::NotAWeight { index, weight });
            }
            sum += weight;
            cumulative.push(sum);
        }
        if !(sum.is_finite() && sum > 0.0) {
            return Err(UnusableWeights::NoSum { sum });
        }
        Ok(Self { cumulative: cumulative.into() })
    }

    /// Weights every sample so that all classes are drawn equally often. `classes` has the class of every sample.
    ///
    /// # Errors
    /// [`UnusableWeights`] if `classes` is empty.
    pub fn balanced(classes: &[usize]) -> Result<Self, UnusableWeights> {
        let mut counts = vec![0_usize; classes.iter().max().map_or(0, |most| most + 1)];
        classes.iter().for_each(|&class| counts[class] += 1);
        let weights: Vec<f64> = classes.iter().map(|&class| 1.0 / counts[class] as f64).collect();
        Self::new(&weights)
    }

    /// Draws one sample, by one number of `rng`: the first whose cumulative weight is above it.
    pub(super) fn draw(&self, rng: &mut impl Rng) -> usize {
        let sum = self.cumulative[self.cumulative.len() - 1];
        let point = unit(rng) * sum;
        // Below the sum but for rounding, which must not draw a last sample of weight 0.
        self.cumulative.partition_point(|&until| until <= point).min(self.last())
    }

    /// A hash that tells these weights from others.
    pub(super) fn digest(&self) -> String {
        let mut hash = Context::new(&SHA256);
        for until in self.cumulative.iter() {
            hash.update(&until.to_le_bytes());
        }
        hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The last sample whose weight is not 0.
    fn last(&self) -> usize {
        let sum = self.cumulative[self.cumulative.len() - 1];
        self.cumulative.partition_point(|&until| until < sum)
    }
}
