//! A data loader whose slices are the shares that a [`DistributedSampler`] deals.
//!
//! Burn's learner knows loaders, and divides them by slicing. This loader lists its items rank after
//! rank: first all that rank 0 gets in this epoch, then those of rank 1, and so on. Its r-th slice is
//! then exactly the share of rank r, of an order that is new in every epoch and the same on all ranks.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bonfire_collective::{ProcessGroup, Rank, WorldSize};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

use crate::prefetch::Ahead;
use crate::{DistributedSampler, Order, Prefetch, Remainder, SamplerConfig};

/// How a [`DealtLoader`] deals.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Deal {
    /// Samples in one batch of one rank.
    pub batch_size: NonZeroUsize,
    /// The order of dealing.
    pub order: Order,
    /// What to do with an uneven rest.
    pub remainder: Remainder,
}

impl Deal {
    /// Deals batches of `batch_size` in `order`, each sample exactly once.
    pub fn new(batch_size: NonZeroUsize, order: Order) -> Self {
        let remainder = Remainder::Exact;
        Self {
            batch_size,
            order,
            remainder,
        }
    }

    /// With another way to treat an uneven rest.
    #[must_use]
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }
}

/// Burn's `DataLoader` for a data set that is dealt to the ranks anew in every epoch, as
/// [`Loader`](crate::Loader) deals it: rank r sees the elements r, r + n, r + 2n and so on of the
/// epoch's order.
///
/// Each call of `iter` is the next epoch. A last batch that is not full is kept. As it is, it has the items
/// of all ranks: Burn's learner divides it, a loop of its own takes [`share`](Self::share).
pub struct DealtLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    deal: Deal,
    /// Nothing to make each batch when it is asked for.
    prefetch: Option<Prefetch>,
    rank: Rank,
    world_size: WorldSize,
    device: Device,
    /// Which of the items of an epoch, listed rank after rank.
    items: Range<usize>,
    /// The epoch that the next iterator deals.
    epoch: AtomicU64,
}

impl<I, O> DealtLoader<I, O> {
    /// Deals `dataset` to the ranks of `world`, which is a `World` or a [`ProcessGroup`], starting with
    /// epoch 0. Batches are made on the default device until the learner says which is its own.
    pub fn new(
        world: &impl AsRef<ProcessGroup>,
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        deal: Deal,
    ) -> Self {
        let group = world.as_ref();
        let mut loader = Self {
            dataset: Arc::new(dataset),
            batcher: Arc::new(batcher),
            deal,
            prefetch: None,
            rank: group.rank(),
            world_size: group.world_size(),
            device: Device::default(),
            items: 0..0,
            epoch: AtomicU64::new(0),
        };
        loader.items = 0..loader.first_of(loader.world_size.len());
        loader
    }

    /// What this rank gets, on its device.
    #[must_use]
    pub fn share(&self, device: &Device) -> Self {
        let rank = self.rank.index();
        self.like(device.clone(), self.first_of(rank)..self.first_of(rank + 1))
    }

    /// Prepares batches on threads, ahead of the training that uses them: `prefetch` says on how many, how far
    /// ahead, and how long one may take. The batches and their order stay the same.
    #[must_use]
    pub fn prefetch(mut self, prefetch: Prefetch) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// How many items the ranks below one have together.
    fn first_of(&self, rank: usize) -> usize {
        let below = self.world_size.ranks().take(rank);
        below.map(|rank| self.sampler(rank).len()).sum()
    }

    fn sampler(&self, rank: Rank) -> DistributedSampler {
        let config = SamplerConfig::new(self.dataset.len(), self.deal.order.clone());
        let config = config.remainder(self.deal.remainder);
        DistributedSampler::of(rank, self.world_size, config)
    }

    /// The samples of `items` in an epoch. Only the ranks whose share is asked for are dealt to.
    fn indices(&self, epoch: u64) -> Vec<usize> {
        let mut indices = Vec::with_capacity(self.items.len());
        let mut first = 0;
        for rank in self.world_size.ranks() {
            let sampler = self.sampler(rank);
            let share = first..first + sampler.len();
            first = share.end;
            let start = self.items.start.max(share.start);
            let end = self.items.end.min(share.end);
            if start < end {
                let dealt = sampler.indices(epoch);
                indices.extend_from_slice(&dealt[start - share.start..end - share.start]);
            }
        }
        indices
    }

    fn like(&self, device: Device, items: Range<usize>) -> Self {
        Self {
            dataset: Arc::clone(&self.dataset),
            batcher: Arc::clone(&self.batcher),
            deal: self.deal.clone(),
            prefetch: self.prefetch,
            rank: self.rank,
            world_size: self.world_size,
            device,
            items,
            epoch: AtomicU64::new(self.epoch.load(Ordering::Relaxed)),
        }
    }
}

impl<I: Send + Sync + 'static, O: Send + 'static> DataLoader<O> for DealtLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        // Only a counter: what it counts is not shared with other memory.
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(DealtBatches {
            loader: self,
            epoch,
            indices: None,
            ordered: 0,
            dealt: 0,
            ahead: None,
        })
    }

    fn num_items(&self) -> usize {
        self.items.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.like(device.clone(), self.items.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let items = self.items.start + start..self.items.start + end;
        assert!(
            start <= end && items.end <= self.items.end,
            "{start}..{end} is no part of {} items",
            self.items.len()
        );
        Arc::new(self.like(self.device.clone(), items))
    }
}

/// The batches of one epoch.
struct DealtBatches<'a, I, O> {
    loader: &'a DealtLoader<I, O>,
    epoch: u64,
    /// Found out with the first batch: an epoch that is skipped costs nothing.
    indices: Option<Vec<usize>>,
    /// Samples of batches that are made, or asked for.
    ordered: usize,
    /// Samples of batches that were given.
    dealt: usize,
    /// The batches on their way, with their numbers of samples; from the first on, if at all.
    ahead: Option<Ahead<usize, O>>,
}

impl<I, O> DealtBatches<'_, I, O> {
    /// The samples of the next batch; none at the end.
    fn order(&mut self) -> Vec<usize> {
        let loader = self.loader;
        let indices = self
            .indices
            .get_or_insert_with(|| loader.indices(self.epoch));
        let start = self.ordered;
        let end = indices.len().min(start + loader.deal.batch_size.get());
        self.ordered = end;
        indices[start..end].to_vec()
    }
}

impl<I: 'static, O: Send + 'static> DealtBatches<'_, I, O> {
    /// The next of the batches that threads prepare.
    fn prepared(&mut self, prefetch: Prefetch) -> io::Result<Option<O>> {
        let mut ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => {
                let dataset = Arc::clone(&self.loader.dataset);
                let batcher = Arc::clone(&self.loader.batcher);
                let device = self.loader.device.clone();
                Ahead::start(prefetch, move |indices: &[usize]| {
                    let items = dataset.get_many(indices.to_vec())?;
                    Ok(batcher.batch(items, &device))
                })?
            }
        };
        while ahead.len() < prefetch.in_flight() {
            let batch = self.order();
            if batch.is_empty() {
                ahead.close();
                break;
            }
            let samples = batch.len();
            ahead.order(batch, samples);
        }
        let next = ahead.pop().map(|ordered| ahead.wait(ordered));
        self.ahead = Some(ahead);
        let Some((samples, batch)) = next else {
            return Ok(None);
        };
        self.dealt += samples;
        batch.map(Some).map_err(io::Error::other)
    }
}

impl<I: 'static, O: Send + 'static> Iterator for DealtBatches<'_, I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let loader = self.loader;
        if let Some(prefetch) = loader.prefetch {
            return self
                .prepared(prefetch)
                .map_err(DatasetError::new)
                .transpose();
        }
        let batch = self.order();
        if batch.is_empty() {
            return None;
        }
        self.dealt = self.ordered;
        let items = loader.dataset.get_many(batch);
        Some(items.map(|items| loader.batcher.batch(items, &loader.device)))
    }
}

impl<I: 'static, O: Send + 'static> DataLoaderIterator<O> for DealtBatches<'_, I, O> {
    fn progress(&self) -> Progress {
        let unit = Some("items".to_owned());
        Progress::new(self.dealt, self.loader.items.len(), unit)
    }
}

#[cfg(test)]
mod tests;
