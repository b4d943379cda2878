//! The weights of the batches of a step.
//!
//! The mean of a step is over all its batches or, when they are weighted, over all their samples. A group computes the
//! mean over its ranks, so each rank's factor makes that the right mean.

use bonfire_collective::{ProcessGroup, ReduceOp, Work};

use crate::TrainError;
use crate::loss::Weight;
use crate::parameters::buffers::Attendance;
use crate::values::Scale;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MicroBatches {
    count: u64,
    samples: u64,
    /// The samples of the first batch that had any: the unit of the others' weights.
    first: u64,
    weighted: bool,
}

impl MicroBatches {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn add(&mut self, weight: Weight) -> Result<(), TrainError> {
        let weighted = matches!(weight, Weight::Samples(_));
        if self.count > 0 && weighted != self.weighted {
            return Err(TrainError::MixedWeights);
        }
        self.weighted = weighted;
        self.count += 1;
        if let Weight::Samples(samples) = weight {
            self.samples += samples as u64;
            if self.first == 0 {
                self.first = samples as u64;
            }
        }
        Ok(())
    }

    /// The factor of the latest batch's gradient in the sum: relative to the first, so that sums of types with a small
    /// range do not overflow, and batches of one size enter unchanged.
    pub(crate) fn scale(&self, weight: Weight) -> Scale {
        match weight {
            Weight::Samples(samples) if samples as u64 != self.first => {
                Scale::By(samples as f64 / self.first as f64)
            }
            Weight::Samples(_) | Weight::Equal => Scale::One,
        }
    }

    /// The factor of this rank's sum before the mean over the ranks. Every rank must call it, before the gradients are
    /// sent.
    #[track_caller]
    pub(crate) fn normalizer(&self, group: &ProcessGroup) -> Normalizer {
        if !self.weighted {
            return Normalizer::Known(1.0 / self.count as f64);
        }
        Normalizer::Agreeing {
            total: group.background(vec![self.samples as f64], |group, data| {
                group.all_reduce(data, ReduceOp::Sum)
            }),
            own: self.first as f64 * group.world_size().get() as f64,
        }
    }

    pub(crate) fn presence(&self) -> Attendance {
        match (self.weighted, self.samples) {
            (false, _) => Attendance::All,
            (true, 0) => Attendance::Away,
            (true, _) => Attendance::Here,
        }
    }

    /// A value that ranks without weights must agree on: its largest and smallest are compared.
    pub(crate) fn comparable(&self) -> i64 {
        if self.weighted { 0 } else { self.count as i64 }
    }
}

/// Marks the last batch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The last one: gradients are sent.
    Yes,
    /// Others follow: its gradients stay on this rank until the last one's are sent.
    No,
}

/// A factor that may depend on the other ranks.
#[derive(Debug)]
pub(crate) enum Normalizer {
    Known(f64),
    Agreeing { total: Work<Vec<f64>>, own: f64 },
}

impl Normalizer {
    /// Returns true if it follows from this rank's batches alone.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// Returns true if [`factor`](Self::factor) does not wait.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Known(_) => true,
            Self::Agreeing { total, .. } => total.is_completed(),
        }
    }

    /// The factor; waits for the other ranks the first time.
    pub(crate) fn factor(&mut self) -> Result<f64, TrainError> {
        let known = match std::mem::replace(self, Self::Known(f64::NAN)) {
            Self::Known(factor) => factor,
            Self::Agreeing { total, own } => {
                let total = total.wait()?[0];
                if total <= 0.0 {
                    return Err(TrainError::NoSamples);
                }
                own / total
            }
        };
        *self = Self::Known(known);
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors with which batches of these sizes enter.
    fn factors(sizes: &[usize]) -> Vec<f64> {
        let mut batches = MicroBatches::default();
        let scale = |&size: &usize| {
            let weight = Weight::Samples(size);
            batches.add(weight).unwrap();
            match batches.scale(weight) {
                Scale::One => 1.0,
                Scale::By(factor) => factor,
            }
        };
        sizes.iter().map(scale).collect()
    }

    #[test]
    fn batches_enter_relative_to_the_first_that_has_samples() {
        assert_eq!(factors(&[512, 512, 512]), [1.0; 3]);
        assert_eq!(factors(&[512, 256, 1024]), [1.0, 0.5, 2.0]);
        assert_eq!(factors(&[0, 4, 2])[1..], [1.0, 0.5]);
    }
}
