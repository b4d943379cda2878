//! Metrics over all ranks.
//!
//! Only sums are sent, in f64: the mean of the ranks' means is wrong as soon as their shares differ.

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

/// A mean over samples that are spread over batches and ranks. An unfinished one can be part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightedMean {
    sum: f64,
    samples: u64,
}

impl WeightedMean {
    /// Makes a mean of no samples yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: its mean and its number of samples.
    pub fn add(&mut self, mean: f64, samples: usize) {
        // A batch without samples has no mean: its value, often NaN, is ignored.
        if samples > 0 {
            self.sum += mean * samples as f64;
            self.samples += samples as u64;
        }
    }

    /// Returns the mean of this rank's samples, or `None` without any.
    pub fn local(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sum / self.samples as f64)
    }

    /// Returns the mean of all ranks' samples, or `None` without any: the same bits on every rank. Every rank must
    /// call it, with its `World` or another group of ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    #[track_caller]
    pub fn over_ranks(&self, world: &impl AsRef<ProcessGroup>) -> Result<f64, CollectiveError> {
        let mut totals = [self.sum, self.samples as f64];
        world.as_ref().all_reduce(&mut totals, ReduceOp::Sum)?;
        let [sum, samples] = totals;
        // Nothing at all is 0 / 0.
        Ok(sum / samples)
    }
}

/// Returns the sum of every rank's `value`: the same bits on every rank. Every rank must call it.
///
/// # Errors
/// [`CollectiveError`].
#[track_caller]
pub fn sum_over_ranks(
    world: &impl AsRef<ProcessGroup>,
    value: f64,
) -> Result<f64, CollectiveError> {
    let mut total = [value];
    world.as_ref().all_reduce(&mut total, ReduceOp::Sum)?;
    Ok(total[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::on_ranks;

    #[test]
    fn the_mean_is_over_samples_and_not_over_ranks() {
        let means = on_ranks(3, |world| {
            let mut mean = WeightedMean::new();
            match world.rank().get() {
                0 => {
                    mean.add(1.0, 1);
                    mean.add(4.0, 2);
                }
                1 => mean.add(11.0, 1),
                // A rank without data, whose mean of nothing must not spoil the others'.
                _ => mean.add(f64::NAN, 0),
            }
            let local = mean.local();
            (local, mean.over_ranks(&world).unwrap())
        });
        let global = 5.0;
        assert_eq!(means, [(Some(3.0), global), (Some(11.0), global), (None, global)]);
    }

    #[test]
    fn a_mean_of_nothing_is_nan_everywhere() {
        let means = on_ranks(2, |world| WeightedMean::new().over_ranks(&world).unwrap());
        assert!(means.iter().all(|mean| mean.is_nan()), "{means:?}");
    }

    #[test]
    fn sums_are_the_same_on_every_rank() {
        let sums =
            on_ranks(3, |world| sum_over_ranks(&world, f64::from(world.rank().get())).unwrap());
        assert_eq!(sums, [3.0, 3.0, 3.0]);
    }
}
