//! Which samples a rank sees in an epoch: a pure function of seed, epoch, rank and world size.
//!
//! Every rank orders all samples in the same way and takes every `world_size`-th, as PyTorch's
//! `DistributedSampler` does, so that no communication is needed and shards never overlap but by
//! padding. The shuffle is written out here on a counter-based generator, so that the order is the
//! same on every platform and does not change with a library's shuffling method.

use bonfire_collective::{Rank, WorldSize};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The order in which samples are dealt to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A new order every epoch, which depends on the seed and the epoch only.
    Shuffled {
        /// The same on every rank.
        seed: u64,
    },
    /// As they are, in every epoch.
    Sequential,
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
#[derive(Clone, Copy, Debug)]
pub struct SamplerConfig {
    /// The number of samples of the data set.
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
#[derive(Clone, Copy, Debug)]
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
        let (len, world) = (self.config.len, self.config.world_size.len());
        match self.config.remainder {
            Remainder::Pad => len.div_ceil(world) * world,
            Remainder::Drop => len / world * world,
            Remainder::Exact => len,
        }
    }

    /// The number of samples this rank sees in one epoch.
    pub fn len(&self) -> usize {
        let (rank, world) = (self.config.rank.index(), self.config.world_size.len());
        self.total_len().saturating_sub(rank).div_ceil(world)
    }

    /// Whether this rank sees nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The indices of this rank's samples in `epoch`, in the order to use them.
    pub fn indices(&self, epoch: u64) -> Vec<usize> {
        let order = match self.config.order {
            Order::Shuffled { seed } => shuffled(self.config.len, seed, epoch),
            Order::Sequential => (0..self.config.len).collect(),
        };
        let (rank, world) = (self.config.rank.index(), self.config.world_size.len());
        (rank..self.total_len())
            .step_by(world)
            .map(|position| order[position % order.len()])
            .collect()
    }
}

/// The numbers below `len`, shuffled (Fisher-Yates).
fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // A stream of its own per epoch: epochs of neighbouring seeds have nothing in common.
    rng.set_stream(epoch);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    order
}

/// A uniform number below `bound`, which is not 0, by rejection.
fn below(rng: &mut impl RngCore, bound: u64) -> u64 {
    assert!(bound > 0, "there is no number below {bound}");
    // The largest multiple of `bound` that fits; numbers from there on would favour small results.
    let limit = u64::MAX - u64::MAX % bound;
    loop {
        let number = rng.next_u64();
        if number < limit {
            return number % bound;
        }
    }
}

#[cfg(test)]
mod tests;
