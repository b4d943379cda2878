//! The agreement of all ranks on a step besides the averages: the parameters with a gradient on any of them, and the
//! number of micro-batches.
//!
//! It is sent as flags with the last bucket if all ranks get the plain mean of that, for then a flag is not zero if
//! any rank has set it. Otherwise it is a separate operation.

use bonfire_collective::{ProcessGroup, ReduceOp, Work};

use crate::TrainError;

#[derive(Debug)]
pub(super) struct StepFlags {
    /// A value that must be the same on all ranks.
    pub(super) comparable: i64,
    pub(super) present: Vec<bool>,
}

pub(super) fn len(parameters: usize) -> usize {
    2 * BITS + parameters
}

/// Bits of the number of micro-batches, which is smaller.
const BITS: usize = 32;

impl StepFlags {
    /// Two flags for each bit that ranks compare: one if it is set, one if it is not. Then the parameters.
    pub(super) fn flags(&self) -> Vec<bool> {
        let bit = |bit: usize| (self.comparable >> bit) & 1 == 1;
        let set = (0..BITS).map(bit);
        let bits = set.clone().chain(set.map(|bit| !bit));
        bits.chain(self.present.iter().copied()).collect()
    }

    pub(super) fn of_all(self, flags: &[bool], group: &ProcessGroup) -> Result<Self, TrainError> {
        let (bits, present) = flags.split_at(2 * BITS);
        let (set, unset) = bits.split_at(BITS);
        if set.iter().zip(unset).any(|(set, unset)| *set && *unset) {
            // A separate operation finds the difference.
            return self.start(group).wait();
        }
        Ok(Self { present: present.to_vec(), ..self })
    }

    #[track_caller]
    pub(super) fn start(&self, group: &ProcessGroup) -> FlagsWork {
        // Maxima are taken: of what is compared and its negative, and of whether a parameter has a gradient.
        let mut numbers = vec![self.comparable, -self.comparable];
        numbers.extend(self.present.iter().map(|&present| i64::from(present)));
        FlagsWork(group.background(numbers, |group, data| group.all_reduce(data, ReduceOp::Max)))
    }
}

pub(super) struct FlagsWork(Work<Vec<i64>>);

impl FlagsWork {
    /// Waits for the flags of all ranks.
    ///
    /// # Errors
    /// [`TrainError::UnequalAccumulation`] on all ranks if their numbers of micro-batches differ.
    pub(super) fn wait(self) -> Result<StepFlags, TrainError> {
        let numbers = self.0.wait()?;
        let (comparable, present) = numbers.split_at(2);
        let (most, least) = (comparable[0], -comparable[1]);
        if most != least {
            return Err(TrainError::UnequalAccumulation { least, most });
        }
        Ok(StepFlags {
            comparable: most,
            present: present.iter().map(|&present| present > 0).collect(),
        })
    }
}
