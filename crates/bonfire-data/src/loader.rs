//! Batches of a rank's share of a data set, a new order every epoch by itself.
//!
//! The epoch belongs to the loader: a program cannot forget to advance it, which in other
//! frameworks makes every epoch the same.

use bonfire_collective::ProcessGroup;

use crate::{DataError, DistributedSampler, Order, Remainder, SamplerState};

/// The treatment of a last batch that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LastBatch {
    /// Keeps the batch with fewer samples.
    Keep,
    /// Leaves the batch out of the epoch.
    Drop,
}

/// Makes the batches of one rank, epoch after epoch.
///
/// Without further settings the samples come in their order, padded so that all ranks have the same number, and the
/// last batch may be smaller. With [`Remainder::Pad`](crate::Remainder::Pad) or [`Drop`](crate::Remainder::Drop) every rank
/// has equally many batches of equal sizes, so that no rank waits for one that has finished.
#[derive(Clone, Debug)]
pub struct Loader {
    sampler: DistributedSampler,
    batch_size: usize,
    last_batch: LastBatch,
    epoch: u64,
    /// Number of samples of the next epoch that are past already.
    offset: usize,
}

impl Loader {
    /// Creates a loader of batches of `batch_size` of the `len` samples for this rank of `world`, which is a `World` or a
    /// [`ProcessGroup`]. It starts with epoch 0.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn new(world: &impl AsRef<ProcessGroup>, len: usize, batch_size: usize) -> Self {
        Self::of(DistributedSampler::new(world, len), batch_size)
    }

    pub(crate) fn of(sampler: DistributedSampler, batch_size: usize) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        Self { sampler, batch_size, last_batch: LastBatch::Keep, epoch: 0, offset: 0 }
    }

    /// Shuffles the samples again in every epoch, by a `seed` that is the same on every rank.
    #[must_use]
    pub fn with_shuffle(self, seed: u64) -> Self {
        self.with_order(Order::Shuffled { seed })
    }

    /// Sets the order of the samples.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.sampler = self.sampler.with_order(order);
        self
    }

    /// Sets what happens to samples that the ranks cannot share evenly.
    #[must_use]
    pub fn with_remainder(mut self, remainder: Remainder) -> Self {
        self.sampler = self.sampler.with_remainder(remainder);
        self
    }

    /// Sets what happens to a last batch that is not full.
    #[must_use]
    pub fn with_last_batch(mut self, last_batch: LastBatch) -> Self {
        self.last_batch = last_batch;
        self
    }

    /// Starts at the begin of `epoch`.
    #[must_use]
    pub fn with_epoch(mut self, epoch: u64) -> Self {
        (self.epoch, self.offset) = (epoch, 0);
        self
    }

    /// Continues where a run was, also in the middle of an epoch and with another number of ranks or another batch
    /// size. The rest of the epoch is distributed to the present ranks. With the same ranks and batches they are the
    /// batches that would have come.
    ///
    /// # Errors
    /// [`DataError::OtherData`] if the state is of another data set or another order.
    pub fn resuming(mut self, state: &SamplerState) -> Result<Self, DataError> {
        let own = self.sampler.state(0, 0);
        if !own.same_data(state) {
            return Err(DataError::OtherData { saved: state.to_string(), given: own.to_string() });
        }
        (self.epoch, self.offset) = (state.epoch, state.offset);
        // The same on every rank: rank 0 has the most that any has.
        let world = self.sampler.world_size().len();
        let most = self.sampler.total_after(state.offset).div_ceil(world);
        if self.batches(most) == 0 {
            (self.epoch, self.offset) = (state.epoch + 1, 0);
        }
        Ok(self)
    }

    /// Returns the epoch that [`next_epoch`](Self::next_epoch) will give.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of batches in every complete epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.batches(self.sampler.len())
    }

    /// Returns the number of batches that [`next_epoch`](Self::next_epoch) will give.
    pub fn batches_left(&self) -> usize {
        self.batches(self.remaining_samples())
    }

    /// Returns the batches of the next epoch: the indices of their samples. After [`resuming`](Self::resuming), the
    /// rest of the current one.
    pub fn next_epoch(&mut self) -> EpochBatches {
        let indices = self.sampler.indices_after(self.epoch, self.offset);
        let batches = self.batches_of(indices);
        self.advance();
        batches
    }

    pub(crate) fn batches_of(&self, indices: Vec<usize>) -> EpochBatches {
        EpochBatches {
            remaining: self.batches(indices.len()),
            indices,
            sampler: self.sampler.clone(),
            batch_size: self.batch_size,
            epoch: self.epoch,
            offset: self.offset,
            done: 0,
        }
    }

    pub(crate) fn advance(&mut self) {
        (self.epoch, self.offset) = (self.epoch + 1, 0);
    }

    /// Where the next epoch begins, for a checkpoint.
    pub fn state(&self) -> SamplerState {
        self.sampler.state(self.epoch, self.offset)
    }

    pub(crate) fn remaining_samples(&self) -> usize {
        self.sampler.len_after(self.offset)
    }

    pub(crate) fn sampler(&self) -> &DistributedSampler {
        &self.sampler
    }

    fn batches(&self, samples: usize) -> usize {
        match self.last_batch {
            LastBatch::Keep => samples.div_ceil(self.batch_size),
            LastBatch::Drop => samples / self.batch_size,
        }
    }
}

/// An iterator over the batches of one epoch.
#[derive(Clone, Debug)]
pub struct EpochBatches {
    sampler: DistributedSampler,
    indices: Vec<usize>,
    batch_size: usize,
    epoch: u64,
    /// The start of the first batch in the epoch, in samples of all ranks.
    offset: usize,
    done: usize,
    remaining: usize,
}

impl EpochBatches {
    /// Returns how far all ranks are once each has used the batches given so far, for a checkpoint. Where ranks have
    /// different numbers of batches ([`Remainder::Exact`](crate::Remainder::Exact)), rank 0 has the most: use its
    /// state.
    pub fn state(&self) -> SamplerState {
        let past = if self.done == self.indices.len() {
            self.sampler.total_after(self.offset)
        } else {
            self.done * self.sampler.world_size().len()
        };
        self.sampler.state(self.epoch, self.offset + past)
    }
}

impl Iterator for EpochBatches {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.remaining = self.remaining.checked_sub(1)?;
        let end = self.indices.len().min(self.done + self.batch_size);
        let batch = self.indices[self.done..end].to_vec();
        self.done = end;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for EpochBatches {}

#[cfg(test)]
mod tests;
