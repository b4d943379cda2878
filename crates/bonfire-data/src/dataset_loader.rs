//! A data loader that distributes a data set to the ranks as a [`DistributedSampler`] does.
//!
//! Its iterator gives the share of this rank. Burn's learner divides loaders by slicing them, so its slices
//! count the items of all ranks, listed rank after rank. The r-th slice is then exactly the share of rank r.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{Mutex, ProcessGroup};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

use crate::prefetch::Ahead;
use crate::{
    DataError, DistributedSampler, EpochBatches, Loader, Order, Prefetch, Remainder, SamplerState,
};

/// Burn's `DataLoader` over a `Dataset` whose elements are distributed to the ranks again in every epoch, as with a
/// [`Loader`]: rank r sees the elements r, r + n, r + 2n and so on of the epoch's order.
///
/// Each call of [`iter`](Self::iter) is the next epoch of this rank's share, so make the loader before the
/// loop over epochs. A last batch that is not full is kept.
///
/// `num_items` and `slice` count the items of all ranks, one rank's after the other's. Burn's learner can so
/// divide the loader, and gives each rank its share.
pub struct DatasetLoader<I, O> {
    source: Arc<Source<I, O>>,
    prefetch: Option<Prefetch>,
    device: Device,
    loader: Mutex<Loader>,
    /// Which of the items of all ranks, for a loader that was sliced.
    slice: Option<Range<usize>>,
}

struct Source<I, O> {
    dataset: Box<dyn Dataset<I>>,
    batcher: Box<dyn Batcher<I, O>>,
}

impl<I, O> DatasetLoader<I, O> {
    /// Creates a loader of batches of `batch_size` samples of `dataset` for this rank of `world`, which is a `World` or a
    /// [`ProcessGroup`]. It starts with epoch 0. Without further settings the samples come in their order, padded so that
    /// all ranks have the same number, on the default device.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn new(
        world: &impl AsRef<ProcessGroup>,
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        batch_size: usize,
    ) -> Self {
        let loader = Loader::new(world, dataset.len(), batch_size);
        Self {
            source: Arc::new(Source { dataset: Box::new(dataset), batcher: Box::new(batcher) }),
            prefetch: None,
            device: Device::default(),
            loader: Mutex::new(loader),
            slice: None,
        }
    }

    /// Shuffles the samples again in every epoch, by a `seed` that is the same on every rank.
    #[must_use]
    pub fn with_shuffle(self, seed: u64) -> Self {
        self.with_order(Order::Shuffled { seed })
    }

    /// Sets the order of the samples.
    #[must_use]
    pub fn with_order(self, order: Order) -> Self {
        self.map(|loader| loader.with_order(order))
    }

    /// Sets what happens to samples that the ranks cannot share evenly.
    #[must_use]
    pub fn with_remainder(self, remainder: Remainder) -> Self {
        self.map(|loader| loader.with_remainder(remainder))
    }

    fn map(self, change: impl FnOnce(Loader) -> Loader) -> Self {
        let loader = Mutex::new(change(self.loader.lock().clone()));
        Self { loader, ..self }
    }

    /// Makes batches on `device`. Burn's learner does so by itself.
    #[must_use]
    pub fn with_device(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// Prepares batches on threads, ahead of the training that uses them: `prefetch` sets their number, how far ahead
    /// they work, and how long a batch may take. The batches and their order stay the same.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: Prefetch) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Continues where a run was, as [`Loader::resuming`] does: also in the middle of an epoch, and with
    /// another number of ranks.
    ///
    /// # Errors
    /// [`DataError::OtherData`] if the state is of another data set or another order.
    pub fn resuming(self, state: &SamplerState) -> Result<Self, DataError> {
        let loader = self.loader.lock().clone().resuming(state)?;
        let loader = Mutex::new(loader);
        Ok(Self { loader, ..self })
    }

    /// The batches of the next epoch. After [`resuming`](Self::resuming), those that are left of it.
    pub fn iter(&self) -> DatasetBatches<'_, I, O> {
        let loader = {
            let mut next = self.loader.lock();
            let loader = next.clone();
            next.advance();
            loader
        };
        let items = match &self.slice {
            Some(items) => items.len(),
            None => loader.remaining_samples(),
        };
        DatasetBatches {
            of: self,
            state: loader.state(),
            loader,
            batches: None,
            items,
            done: 0,
            ahead: None,
        }
    }

    fn like(&self, device: Device, slice: Option<Range<usize>>) -> Self {
        Self {
            source: Arc::clone(&self.source),
            prefetch: self.prefetch,
            device,
            loader: Mutex::new(self.loader.lock().clone()),
            slice,
        }
    }
}

/// The samples of `items` in an epoch, where the items of all ranks are counted one rank after the other. Only the
/// shares of ranks that are asked for are made.
fn indices(sampler: &DistributedSampler, items: &Range<usize>, epoch: u64) -> Vec<usize> {
    let mut indices = Vec::with_capacity(items.len());
    let mut first = 0;
    for rank in sampler.world_size().ranks() {
        let sampler = sampler.of_rank(rank);
        let share = first..first + sampler.len();
        first = share.end;
        let start = items.start.max(share.start);
        let end = items.end.min(share.end);
        if start < end {
            let own = sampler.indices(epoch);
            indices.extend_from_slice(&own[start - share.start..end - share.start]);
        }
    }
    indices
}

impl<I: Send + Sync + 'static, O: Send + 'static> DataLoader<O> for DatasetLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(Self::iter(self))
    }

    fn num_items(&self) -> usize {
        match &self.slice {
            Some(items) => items.len(),
            None => self.loader.lock().sampler().total_len(),
        }
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.like(device.clone(), self.slice.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let count = self.num_items();
        assert!(start <= end && end <= count, "{start}..{end} is not within {count} items");
        let first = self.slice.as_ref().map_or(0, |items| items.start);
        let items = first + start..first + end;
        Arc::new(self.like(self.device.clone(), Some(items)))
    }
}

/// The batches of one epoch of a [`DatasetLoader`].
pub struct DatasetBatches<'a, I, O> {
    of: &'a DatasetLoader<I, O>,
    loader: Loader,
    /// Made with the first batch: an epoch that is skipped costs nothing.
    batches: Option<EpochBatches>,
    items: usize,
    done: usize,
    /// The progress of all ranks after the batches that were given.
    state: SamplerState,
    ahead: Option<Ahead<(usize, SamplerState), O>>,
}

impl<I, O> DatasetBatches<'_, I, O> {
    /// How far all ranks are once each has used the batches given so far, for a checkpoint. Where ranks
    /// have different numbers of batches ([`Remainder::Exact`]), rank 0 has the most: ask that one.
    pub fn state(&self) -> SamplerState {
        self.state.clone()
    }

    fn order(&mut self) -> Option<(Vec<usize>, SamplerState)> {
        let (of, loader) = (self.of, &mut self.loader);
        let batches = self.batches.get_or_insert_with(|| match &of.slice {
            None => loader.next_epoch(),
            Some(items) => {
                let indices = indices(loader.sampler(), items, loader.epoch());
                loader.batches_of(indices)
            }
        });
        Some((batches.next()?, batches.state()))
    }
}

impl<I: 'static, O: Send + 'static> DatasetBatches<'_, I, O> {
    /// The next of the batches that threads prepare.
    fn prepared(&mut self, prefetch: Prefetch) -> io::Result<Option<O>> {
        let mut ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => {
                let source = Arc::clone(&self.of.source);
                let device = self.of.device.clone();
                Ahead::start(prefetch, move |indices: &[usize]| {
                    let items = source.dataset.get_many(indices.to_vec())?;
                    Ok(source.batcher.batch(items, &device))
                })?
            }
        };
        while ahead.len() < prefetch.in_flight() {
            let Some((batch, state)) = self.order() else {
                ahead.close();
                break;
            };
            let samples = batch.len();
            ahead.order(batch, (samples, state));
        }
        let next = ahead.pop().map(|ordered| ahead.wait(ordered));
        self.ahead = Some(ahead);
        let Some(((samples, state), batch)) = next else {
            return Ok(None);
        };
        self.done += samples;
        self.state = state;
        batch.map(Some).map_err(io::Error::other)
    }
}

impl<I: 'static, O: Send + 'static> Iterator for DatasetBatches<'_, I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(prefetch) = self.of.prefetch {
            return self.prepared(prefetch).map_err(DatasetError::new).transpose();
        }
        let (batch, state) = self.order()?;
        self.done += batch.len();
        self.state = state;
        let source = &self.of.source;
        let items = source.dataset.get_many(batch);
        Some(items.map(|items| source.batcher.batch(items, &self.of.device)))
    }
}

impl<I: 'static, O: Send + 'static> DataLoaderIterator<O> for DatasetBatches<'_, I, O> {
    fn progress(&self) -> Progress {
        let unit = Some("items".to_owned());
        Progress::new(self.done, self.items, unit)
    }
}

#[cfg(test)]
mod tests;
