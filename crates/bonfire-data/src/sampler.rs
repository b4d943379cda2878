//! Which samples a rank sees in an epoch: a pure function of seed, epoch, offset, rank and world size.
//!
//! Every rank orders all samples in the same way and takes every `world_size`-th, as PyTorch's
//! `DistributedSampler` does, so that no communication is needed and shards never overlap but by
//! padding. Ranks that have each taken k samples have together taken the first k × `world_size`, so
//! one number, the offset, says how far an epoch has come, whatever the number of ranks that go on.
//!
//! The shuffle is written out here on a counter-based generator, so that the order is the same on
//! every platform and does not change with a library's shuffling method.

mod state;
mod weights;

use bonfire_collective::{Rank, WorldSize};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::random::below;
pub use state::SamplerState;
pub use weights::{SampleWeights, UnusableWeights};

/// The order in which samples are dealt to the ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// A new order every epoch, which depends on the seed and the epoch only.
    Shuffled {
        /// The same on every rank.
        seed: u64,
    },
    /// As they are, in every epoch.
    Sequential,
    /// Drawn with replacement, each sample as often as its weight says, anew every epoch. An epoch
    /// has [`SamplerConfig::len`] draws.
    Weighted {
        /// The same on every rank.
        seed: u64,
        /// One weight per sample.
        weights: SampleWeights,
    },
}

/// What to do when the samples cannot be dealt evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// Repeat samples from the start of the order until every rank has the same number.
    Pad,
    /// Leave out the last few, so that every rank has the same number.
    Drop,
    /// Deal each sample exactly once: some ranks have one more. For evaluation, where repeated
    /// samples would make the result wrong.
    Exact,
}

/// What a [`DistributedSampler`] deals, and to whom.
#[derive(Clone, Debug)]
pub struct SamplerConfig {
    /// The number of samples of the data set; with [`Order::Weighted`] the number of draws.
    pub len: usize,
    /// Whose share.
    pub rank: Rank,
    /// Of how many.
    pub world_size: WorldSize,
    /// The order of dealing.
    pub order: Order,
    /// What to do with an uneven rest.
    pub remainder: Remainder,
}

/// A rank's share of a data set.
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    config: SamplerConfig,
}

impl DistributedSampler {
    /// A sampler.
    ///
    /// # Panics
    /// If the rank is not in the world.
    pub fn new(config: SamplerConfig) -> Self {
        assert!(
            config.world_size.contains(config.rank),
            "rank {} is not in a world of {}",
            config.rank,
            config.world_size.len()
        );
        Self { config }
    }

    /// The number of samples dealt in one epoch to all ranks together, repeated ones included.
    pub fn total_len(&self) -> usize {
        self.total_after(0)
    }

    /// The number of samples this rank sees in one epoch.
    pub fn len(&self) -> usize {
        self.len_after(0)
    }

    /// Whether this rank sees nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indices of this rank's samples in `epoch`, in the order to use them.
    pub fn indices(&self, epoch: u64) -> Vec<usize> {
        self.indices_after(epoch, 0)
    }

    /// What is left for this rank of an `epoch` of which all ranks together, however many they were,
    /// have seen the first `offset` samples of the order.
    pub fn indices_after(&self, epoch: u64, offset: usize) -> Vec<usize> {
        let order = self.order(epoch);
        let (rank, world) = (self.config.rank.index(), self.config.world_size.len());
        (offset + rank..offset + self.total_after(offset))
            .step_by(world)
            .map(|position| order[position % order.len()])
            .collect()
    }

    /// Where an epoch is after the first `offset` samples of its order.
    pub fn state(&self, epoch: u64, offset: usize) -> SamplerState {
        SamplerState::new(&self.config, epoch, offset)
    }

    /// How many samples all ranks together see after the first `offset`.
    pub(crate) fn total_after(&self, offset: usize) -> usize {
        let world = self.config.world_size.len();
        let rest = self.config.len.saturating_sub(offset);
        match self.config.remainder {
            Remainder::Pad => rest.div_ceil(world) * world,
            Remainder::Drop => rest / world * world,
            Remainder::Exact => rest,
        }
    }

    /// How many samples this rank sees after the first `offset`.
    pub(crate) fn len_after(&self, offset: usize) -> usize {
        let (rank, world) = (self.config.rank.index(), self.config.world_size.len());
        self.total_after(offset)
            .saturating_sub(rank)
            .div_ceil(world)
    }

    pub(crate) fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// All samples of an epoch, as they are dealt.
    fn order(&self, epoch: u64) -> Vec<usize> {
        let len = self.config.len;
        match &self.config.order {
            Order::Shuffled { seed } => shuffled(len, *seed, epoch),
            Order::Sequential => (0..len).collect(),
            Order::Weighted { seed, weights } => {
                let mut rng = generator(*seed, epoch);
                (0..len).map(|_| weights.draw(&mut rng)).collect()
            }
        }
    }
}

/// Random numbers of an epoch. A stream of its own per epoch: epochs of neighbouring seeds have
/// nothing in common.
fn generator(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(epoch);
    rng
}

/// The numbers below `len`, shuffled (Fisher-Yates).
fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut rng = generator(seed, epoch);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests;
