//! Numbers about all ranks.
//!
//! Only sums travel, in f64: the mean of the ranks' means is wrong as soon as their shares differ.

use bonfire_collective::{ProcessGroup, ReduceOp};

use crate::TrainError;

/// A mean over samples that are spread over batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightedMean {
    sum: f64,
    samples: u64,
}

impl WeightedMean {
    /// A mean of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: its mean and its number of samples.
    pub fn add(&mut self, mean: f64, samples: usize) {
        // A batch without samples has no mean: what it says, often NaN, counts nothing.
        if samples > 0 {
            self.sum += mean * samples as f64;
            self.samples += samples as u64;
        }
    }

    /// The mean of what this rank added, if anything.
    pub fn local(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sum / self.samples as f64)
    }

    /// The mean of what all ranks added, if anything: the same bits on every rank. Every rank must
    /// call it.
    ///
    /// # Errors
    /// [`TrainError::Collective`].
    #[track_caller]
    pub fn over_ranks(&self, group: &ProcessGroup) -> Result<Option<f64>, TrainError> {
        let mut totals = [self.sum, self.samples as f64];
        group.all_reduce(&mut totals, ReduceOp::Sum)?;
        let [sum, samples] = totals;
        Ok((samples > 0.0).then(|| sum / samples))
    }
}

/// The sum of every rank's `value`: the same bits on every rank. Every rank must call it.
///
/// # Errors
/// [`TrainError::Collective`].
#[track_caller]
pub fn sum_over_ranks(group: &ProcessGroup, value: f64) -> Result<f64, TrainError> {
    let mut total = [value];
    group.all_reduce(&mut total, ReduceOp::Sum)?;
    Ok(total[0])
}
