//! A data loader that distributes a data set to the ranks as a [`DistributedSampler`] does.
//!
//! Its iterator gives the share of this rank. Burn's learner divides loaders by slicing them, so its slices
//! count the items of all ranks, listed rank after rank. The r-th slice is then exactly the share of rank r.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::{ProcessGroup, WorldSize};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

use crate::prefetch::Ahead;
use crate::{
    DataError, DistributedSampler, EpochBatches, LastBatch, Loader, Order, Prefetch, Remainder,
    SamplerConfig, SamplerState,
};

/// Options of a [`DealtLoader`]: batch size, order and remainder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Deal {
    /// Samples in one batch of one rank.
    pub batch_size: NonZeroUsize,
    /// The order of the samples.
    pub order: Order,
    /// The treatment of samples that do not divide evenly.
    pub remainder: Remainder,
}

impl Deal {
    /// Distributes batches of `batch_size` in `order`, padded so that all ranks have equally many.
    pub fn new(batch_size: NonZeroUsize, order: Order) -> Self {
        let remainder = Remainder::Pad;
        Self {
            batch_size,
            order,
            remainder,
        }
    }

    /// Sets the treatment of samples that do not divide evenly.
    #[must_use]
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }
}

/// Burn's `DataLoader` for a data set that is distributed to the ranks anew in every epoch, as [`Loader`] does: rank r
/// sees the elements r, r + n, r + 2n and so on of the epoch's order.
///
/// Each call of [`iter`](Self::iter) is the next epoch of this rank's share, so make the loader before the
/// loop over epochs. A last batch that is not full is kept.
///
/// `num_items` and `slice` count the items of all ranks, one rank's after the other's. So Burn's learner can divide
/// the loader and give each rank its share.
pub struct DealtLoader<I, O> {
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
    sampler: SamplerConfig,
    world_size: WorldSize,
}

impl<I, O> DealtLoader<I, O> {
    /// Distributes `dataset` to the ranks of `world`, which is a `World` or a [`ProcessGroup`], starting with epoch 0.
    /// Batches are made on the default device; [`on`](Self::on) sets another.
    pub fn new(
        world: &impl AsRef<ProcessGroup>,
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        deal: Deal,
    ) -> Self {
        let config = SamplerConfig::new(dataset.len(), deal.order).remainder(deal.remainder);
        let sampler = DistributedSampler::new(world, config.clone());
        Self {
            source: Arc::new(Source {
                dataset: Box::new(dataset),
                batcher: Box::new(batcher),
                sampler: config,
                world_size: world.as_ref().world_size(),
            }),
            prefetch: None,
            device: Device::default(),
            loader: Mutex::new(Loader::new(sampler, deal.batch_size, LastBatch::Keep)),
            slice: None,
        }
    }

    /// Makes batches on `device`. Burn's learner sets it by itself.
    #[must_use]
    pub fn on(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// Prepares batches on threads, ahead of the training that uses them: `prefetch` sets their number, how far ahead
    /// they work, and how long a batch may take. The batches and their order stay the same.
    #[must_use]
    pub fn prefetch(mut self, prefetch: Prefetch) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Continues where a run was, as [`Loader::resuming`] does: also in the middle of an epoch, and with
    /// another number of ranks.
    ///
    /// # Errors
    /// [`DataError::OtherData`] if the state is of another data set or another order.
    pub fn resuming(self, state: &SamplerState) -> Result<Self, DataError> {
        let loader = self.lock().clone().resuming(state)?;
        let loader = Mutex::new(loader);
        Ok(Self { loader, ..self })
    }

    /// Returns the batches of the next epoch; after [`resuming`](Self::resuming), the rest of the current one.
    pub fn iter(&self) -> DealtBatches<'_, I, O> {
        let loader = {
            let mut next = self.lock();
            let loader = next.clone();
            next.advance();
            loader
        };
        let items = match &self.slice {
            Some(items) => items.len(),
            None => loader.remaining_samples(),
        };
        DealtBatches {
            of: self,
            state: loader.state(),
            loader,
            batches: None,
            items,
            dealt: 0,
            ahead: None,
        }
    }

    /// The place of the next epoch, which no panic leaves half changed.
    fn lock(&self) -> MutexGuard<'_, Loader> {
        self.loader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn like(&self, device: Device, slice: Option<Range<usize>>) -> Self {
        Self {
            source: Arc::clone(&self.source),
            prefetch: self.prefetch,
            device,
            loader: Mutex::new(self.lock().clone()),
            slice,
        }
    }
}

impl<I, O> Source<I, O> {
    /// Indices of `items` in an epoch. Only the shares of the ranks concerned are computed.
    fn indices(&self, items: &Range<usize>, epoch: u64) -> Vec<usize> {
        let mut indices = Vec::with_capacity(items.len());
        let mut first = 0;
        for rank in self.world_size.ranks() {
            let sampler = DistributedSampler::of(rank, self.world_size, self.sampler.clone());
            let share = first..first + sampler.len();
            first = share.end;
            let start = items.start.max(share.start);
            let end = items.end.min(share.end);
            if start < end {
                let dealt = sampler.indices(epoch);
                indices.extend_from_slice(&dealt[start - share.start..end - share.start]);
            }
        }
        indices
    }
}

impl<I: Send + Sync + 'static, O: Send + 'static> DataLoader<O> for DealtLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(Self::iter(self))
    }

    fn num_items(&self) -> usize {
        match &self.slice {
            Some(items) => items.len(),
            None => self.lock().sampler().total_len(),
        }
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.like(device.clone(), self.slice.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let count = self.num_items();
        assert!(
            start <= end && end <= count,
            "{start}..{end} is not within {count} items"
        );
        let first = self.slice.as_ref().map_or(0, |items| items.start);
        let items = first + start..first + end;
        Arc::new(self.like(self.device.clone(), Some(items)))
    }
}

/// The batches of one epoch of a [`DealtLoader`].
pub struct DealtBatches<'a, I, O> {
    of: &'a DealtLoader<I, O>,
    loader: Loader,
    /// Made with the first batch: an epoch that is skipped costs nothing.
    batches: Option<EpochBatches>,
    items: usize,
    dealt: usize,
    /// The progress of all ranks after the batches that were given.
    state: SamplerState,
    ahead: Option<Ahead<(usize, SamplerState), O>>,
}

impl<I, O> DealtBatches<'_, I, O> {
    /// Returns how far all ranks are once each has used the batches given so far, for a checkpoint. Where ranks have
    /// different numbers of batches ([`Remainder::Exact`]), rank 0 has the most: use its state.
    pub fn state(&self) -> SamplerState {
        self.state.clone()
    }

    fn order(&mut self) -> Option<(Vec<usize>, SamplerState)> {
        let (of, loader) = (self.of, &mut self.loader);
        let batches = self.batches.get_or_insert_with(|| match &of.slice {
            None => loader.next_epoch(),
            Some(items) => {
                let indices = of.source.indices(items, loader.epoch());
                loader.batches_of(indices)
            }
        });
        Some((batches.next()?, batches.state()))
    }
}

impl<I: 'static, O: Send + 'static> DealtBatches<'_, I, O> {
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
        self.dealt += samples;
        self.state = state;
        batch.map(Some).map_err(io::Error::other)
    }
}

impl<I: 'static, O: Send + 'static> Iterator for DealtBatches<'_, I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(prefetch) = self.of.prefetch {
            return self
                .prepared(prefetch)
                .map_err(DatasetError::new)
                .transpose();
        }
        let (batch, state) = self.order()?;
        self.dealt += batch.len();
        self.state = state;
        let source = &self.of.source;
        let items = source.dataset.get_many(batch);
        Some(items.map(|items| source.batcher.batch(items, &self.of.device)))
    }
}

impl<I: 'static, O: Send + 'static> DataLoaderIterator<O> for DealtBatches<'_, I, O> {
    fn progress(&self) -> Progress {
        let unit = Some("items".to_owned());
        Progress::new(self.dealt, self.items, unit)
    }
}

#[cfg(test)]
mod tests;
