//! What all ranks have to know of a step besides the averages: which parameters have a gradient on any of them, and
//! that they have had as many micro-batches.
//!
//! It travels as flags with the last bucket where all ranks get the plain mean of that, for then a flag is not zero where
//! any rank has set it. Elsewhere it is an operation of its own.

use bonfire_collective::{ProcessGroup, ReduceOp, Work};

use crate::TrainError;

/// What one rank says, or all together.
#[derive(Debug)]
pub(super) struct Verdict {
    /// What must be the same on all ranks.
    pub(super) comparable: i64,
    /// Of each parameter.
    pub(super) present: Vec<bool>,
}

/// How many flags say it of so many parameters.
pub(super) fn len(parameters: usize) -> usize {
    2 * BITS + parameters
}

/// Of the number of micro-batches, which is smaller.
const BITS: usize = 32;

impl Verdict {
    /// Two flags for each bit that ranks compare: that it is set somewhere, and that it is not. Then the parameters.
    pub(super) fn flags(&self) -> Vec<bool> {
        let bit = |bit: usize| (self.comparable >> bit) & 1 == 1;
        let set = (0..BITS).map(bit);
        let bits = set.clone().chain(set.map(|bit| !bit));
        bits.chain(self.present.iter().copied()).collect()
    }

    /// What the flags of all ranks together say. They are the same on all, and so is what comes of it.
    pub(super) fn of_all(self, flags: &[bool], group: &ProcessGroup) -> Result<Self, TrainError> {
        let (bits, present) = flags.split_at(2 * BITS);
        let (set, unset) = bits.split_at(BITS);
        if set.iter().zip(unset).any(|(set, unset)| *set && *unset) {
            // An operation of its own says by how much.
            return self.start(group).wait();
        }
        Ok(Self {
            present: present.to_vec(),
            ..self
        })
    }

    /// Starts an operation that tells it to all ranks.
    #[track_caller]
    pub(super) fn start(&self, group: &ProcessGroup) -> Told {
        // Maxima are taken: of what is compared and its negative, and of whether a parameter has a gradient.
        let mut numbers = vec![self.comparable, -self.comparable];
        numbers.extend(self.present.iter().map(|&present| i64::from(present)));
        Told(group.background(numbers, |group, data| group.all_reduce(data, ReduceOp::Max)))
    }
}

/// A verdict on its way.
pub(super) struct Told(Work<Vec<i64>>);

impl Told {
    /// That of all ranks.
    ///
    /// # Errors
    /// [`TrainError::UnequalAccumulation`] on all ranks if they have not had as many micro-batches.
    pub(super) fn wait(self) -> Result<Verdict, TrainError> {
        let numbers = self.0.wait()?;
        let (comparable, present) = numbers.split_at(2);
        let (most, least) = (comparable[0], -comparable[1]);
        if most != least {
            return Err(TrainError::UnequalAccumulation { least, most });
        }
        Ok(Verdict {
            comparable: most,
            present: present.iter().map(|&present| present > 0).collect(),
        })
    }
}
