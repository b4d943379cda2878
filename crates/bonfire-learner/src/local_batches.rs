//! A rank's share of a loader that has no notion of ranks.

pub(crate) mod batches;
pub(crate) mod step_agreement;

use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{Rank, WorldSize};
use burn::data::dataloader::DataLoader;

use crate::error::LearnerError;
use bonfire_train::World;

/// The part of `items` items of a rank: contiguous, and the first ranks have one more if they do not divide evenly.
pub(crate) fn range_of(items: usize, rank: Rank, world_size: WorldSize) -> Range<usize> {
    let (rank, world) = (rank.index(), world_size.len());
    let start = |rank: usize| rank * (items / world) + rank.min(items % world);
    start(rank)..start(rank + 1)
}

pub(crate) struct LocalBatches<O> {
    /// `None` where this rank has no items: not every loader can be sliced to nothing.
    pub(crate) loader: Option<Arc<dyn DataLoader<O>>>,
    /// The items of all ranks.
    pub(crate) total: usize,
}

impl<O> LocalBatches<O> {
    /// This rank's part of `loader`, on its device or, for training, on that device with autodiff.
    pub(crate) fn of(
        loader: &Arc<dyn DataLoader<O>>,
        world: &World,
        device: &burn::tensor::Device,
    ) -> Result<Self, LearnerError> {
        let total = loader.num_items();
        let Range { start, end } = range_of(total, world.rank(), world.world_size());
        if start == end {
            return Ok(Self { loader: None, total });
        }
        let part = loader.slice(start, end);
        let found = part.num_items();
        if found != end - start {
            return Err(LearnerError::NotSliced { start, end, found });
        }
        Ok(Self { loader: Some(part.to_device(device)), total })
    }

    /// Skips epochs that an earlier run has used, so that the next is in the order it would have had.
    pub(crate) fn skip(&self, epochs: usize) {
        for _ in 0..epochs {
            if let Some(loader) = &self.loader {
                drop(loader.iter());
            }
        }
    }
}
