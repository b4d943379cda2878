//! Batches of a rank's share of a data set, a new order every epoch by itself.
//!
//! The epoch belongs to the loader: a program cannot forget to advance it, which in other
//! frameworks makes every epoch the same.

use std::num::NonZeroUsize;

use crate::DistributedSampler;

/// What to do with a last batch that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// Use it.
    Keep,
    /// Leave it out.
    Drop,
}

/// Deals the batches of one rank, epoch after epoch.
///
/// With [`Remainder::Pad`](crate::Remainder::Pad) or [`Drop`](crate::Remainder::Drop) every rank
/// has equally many batches of equal sizes, so that no rank waits for one that has finished.
#[derive(Clone, Debug)]
pub struct Loader {
    sampler: DistributedSampler,
    batch_size: NonZeroUsize,
    last_batch: LastBatch,
    epoch: u64,
}

impl Loader {
    /// Deals batches of `batch_size` samples per rank, starting with epoch 0.
    pub fn new(
        sampler: DistributedSampler,
        batch_size: NonZeroUsize,
        last_batch: LastBatch,
    ) -> Self {
        Self {
            sampler,
            batch_size,
            last_batch,
            epoch: 0,
        }
    }

    /// Continues with another epoch, to resume a run.
    #[must_use]
    pub fn starting_at(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// The epoch that [`next_epoch`](Self::next_epoch) will deal.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of batches in every epoch.
    pub fn batches_per_epoch(&self) -> usize {
        let (len, size) = (self.sampler.len(), self.batch_size.get());
        match self.last_batch {
            LastBatch::Keep => len.div_ceil(size),
            LastBatch::Drop => len / size,
        }
    }

    /// The batches of the next epoch: the indices of their samples.
    pub fn next_epoch(&mut self) -> EpochBatches {
        let indices = self.sampler.indices(self.epoch);
        self.epoch += 1;
        EpochBatches {
            indices,
            batch_size: self.batch_size.get(),
            dealt: 0,
            remaining: self.batches_per_epoch(),
        }
    }
}

/// The batches of one epoch.
#[derive(Clone, Debug)]
pub struct EpochBatches {
    indices: Vec<usize>,
    batch_size: usize,
    dealt: usize,
    remaining: usize,
}

impl Iterator for EpochBatches {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.remaining = self.remaining.checked_sub(1)?;
        let end = self.indices.len().min(self.dealt + self.batch_size);
        let batch = self.indices[self.dealt..end].to_vec();
        self.dealt = end;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for EpochBatches {}

#[cfg(test)]
mod tests {
    use bonfire_collective::{Rank, WorldSize};

    use super::*;
    use crate::{Order, Remainder, SamplerConfig};

    fn loader(len: usize, batch_size: usize, last_batch: LastBatch) -> Loader {
        let sampler = DistributedSampler::new(SamplerConfig {
            len,
            rank: Rank::new(1),
            world_size: WorldSize::new(2).unwrap(),
            order: Order::Shuffled { seed: 11 },
            remainder: Remainder::Pad,
        });
        Loader::new(sampler, NonZeroUsize::new(batch_size).unwrap(), last_batch)
    }

    #[test]
    fn the_epoch_advances_by_itself() {
        let mut loader = loader(20, 4, LastBatch::Keep);
        let first: Vec<_> = loader.next_epoch().collect();
        assert_eq!(loader.epoch(), 1);
        let second: Vec<_> = loader.next_epoch().collect();
        assert_ne!(first, second);
        assert_eq!(
            loader.starting_at(0).next_epoch().collect::<Vec<_>>(),
            first
        );
    }

    #[test]
    fn a_short_last_batch_is_kept_or_dropped() {
        let sizes = |last_batch| {
            let batches = loader(20, 4, last_batch).next_epoch();
            assert_eq!(batches.len(), loader(20, 4, last_batch).batches_per_epoch());
            batches.map(|batch| batch.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(LastBatch::Keep), [4, 4, 2]);
        assert_eq!(sizes(LastBatch::Drop), [4, 4]);
    }

    #[test]
    fn the_batches_are_the_share_in_order() {
        let mut loader = loader(21, 3, LastBatch::Keep);
        let indices = loader.sampler.indices(0);
        assert_eq!(loader.next_epoch().flatten().collect::<Vec<_>>(), indices);
    }
}
