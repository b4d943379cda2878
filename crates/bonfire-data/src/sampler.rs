//! The samples of a rank in an epoch: a pure function of seed, epoch, offset, rank and world size.
//!
//! Every rank orders all samples in the same way and takes every `world_size`-th, as PyTorch's `DistributedSampler`
//! does, so that no communication is needed and shards never overlap but by padding. Ranks that have each taken k
//! samples have together taken the first k × `world_size`, so one number, the offset, says how far an epoch has come,
//! whatever the number of ranks that continue.
//!
//! The shuffle is written out here on a counter-based generator, so that the order is the same on
//! every platform and does not change with a library's shuffling method.

mod state;
mod weights;

use bonfire_collective::{ProcessGroup, Rank, WorldSize};
use chacha20::ChaCha8Rng;
use rand::SeedableRng;

use crate::random::below;
pub use state::SamplerState;
pub use weights::{SampleWeights, UnusableWeights};

/// The order in which samples are distributed to the ranks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Order {
    /// A new order every epoch, which depends on the seed and the epoch only.
    Shuffled {
        /// The seed, the same on every rank.
        seed: u64,
    },
    /// The order of the data set, in every epoch.
    Sequential,
    /// Drawn with replacement, each sample as often as its weight says, again in every epoch. An epoch has
    /// as many draws as the sampler has samples.
    Weighted {
        /// The seed, the same on every rank.
        seed: u64,
        /// The weights, one per sample.
        weights: SampleWeights,
    },
}

/// The treatment of samples that do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remainder {
    /// Repeat samples from the start of the order until every rank has the same number.
    Pad,
    /// Leave out the last few, so that every rank has the same number.
    Drop,
    /// Use each sample exactly once: some ranks have one more. For evaluation, where repeated samples would make the
    /// result wrong.
    Exact,
}

/// A rank's share of a data set: without further settings in order, padded to the same number on every rank.
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    rank: Rank,
    world_size: WorldSize,
    /// The number of samples of the data set; with [`Order::Weighted`] the number of draws.
    len: usize,
    order: Order,
    remainder: Remainder,
}

impl DistributedSampler {
    /// Shares `len` samples among the ranks of `world`, which is a `World` or a [`ProcessGroup`]. With
    /// [`Order::Weighted`] `len` is the number of draws of an epoch.
    pub fn new(world: &impl AsRef<ProcessGroup>, len: usize) -> Self {
        let group = world.as_ref();
        Self::of(group.rank(), group.world_size(), len)
    }

    pub(crate) fn of(rank: Rank, world_size: WorldSize, len: usize) -> Self {
        assert!(world_size.contains(rank), "rank {rank} is in a world of {world_size}");
        Self { rank, world_size, len, order: Order::Sequential, remainder: Remainder::Pad }
    }

    /// The same samples as another rank has them.
    pub(crate) fn of_rank(&self, rank: Rank) -> Self {
        Self { rank, ..self.clone() }
    }

    /// Shuffles the samples again in every epoch, by a `seed` that is the same on every rank.
    #[must_use]
    pub fn with_shuffle(self, seed: u64) -> Self {
        self.with_order(Order::Shuffled { seed })
    }

    /// Sets the order of the samples.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets what happens to samples that the ranks cannot share evenly.
    #[must_use]
    pub fn with_remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }

    /// The number of samples of one epoch over all ranks, repeated ones included.
    pub fn total_len(&self) -> usize {
        self.total_after(0)
    }

    /// Returns the number of samples that this rank sees in one epoch.
    pub fn len(&self) -> usize {
        self.len_after(0)
    }

    /// Returns true if this rank has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the indices of this rank's samples in `epoch`, in the order to use them.
    pub fn indices(&self, epoch: u64) -> Vec<usize> {
        self.indices_after(epoch, 0)
    }

    /// Returns this rank's indices in the rest of an `epoch` of which all ranks together, however many they were, have
    /// seen the first `offset` samples of the order.
    ///
    /// A shuffle takes memory for the whole data set while it is made, 4 bytes per sample (8 from 2^32
    /// samples on); all other orders take only what is returned.
    pub fn indices_after(&self, epoch: u64, offset: usize) -> Vec<usize> {
        let len = self.len;
        let own = offset + self.rank.index()..offset + self.total_after(offset);
        let own = own.step_by(self.world_size.len()).map(|place| place % len);
        match &self.order {
            Order::Shuffled { seed } if u32::try_from(len).is_ok() => {
                let order = shuffled(0..len as u32, *seed, epoch);
                own.map(|place| order[place] as usize).collect()
            }
            Order::Shuffled { seed } => {
                let order = shuffled(0..len, *seed, epoch);
                own.map(|place| order[place]).collect()
            }
            Order::Sequential => own.collect(),
            Order::Weighted { seed, weights } => {
                let mut rng = generator(*seed, epoch);
                let draw = |place: usize| {
                    // Two words per draw, so that any can be had without those before it.
                    rng.set_word_pos(2 * place as u128);
                    weights.draw(&mut rng)
                };
                own.map(draw).collect()
            }
        }
    }

    /// Returns the state of an epoch after the first `offset` samples of its order.
    pub fn state(&self, epoch: u64, offset: usize) -> SamplerState {
        SamplerState::new(self.len, &self.order, epoch, offset)
    }

    pub(crate) fn total_after(&self, offset: usize) -> usize {
        let world = self.world_size.len();
        let rest = self.len.saturating_sub(offset);
        match self.remainder {
            Remainder::Pad => rest.div_ceil(world) * world,
            Remainder::Drop => rest / world * world,
            Remainder::Exact => rest,
        }
    }

    pub(crate) fn len_after(&self, offset: usize) -> usize {
        let (rank, world) = (self.rank.index(), self.world_size.len());
        self.total_after(offset).saturating_sub(rank).div_ceil(world)
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        self.world_size
    }
}

/// Random numbers of an epoch. Each epoch has its own stream: epochs of neighbouring seeds share no numbers.
fn generator(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(epoch);
    rng
}

/// Shuffles numbers by the algorithm of Fisher and Yates.
fn shuffled<T>(numbers: impl Iterator<Item = T>, seed: u64, epoch: u64) -> Vec<T> {
    let mut rng = generator(seed, epoch);
    let mut order: Vec<T> = numbers.collect();
    for last in (1..order.len()).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests;
