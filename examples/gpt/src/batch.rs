//! Selects the windows of the text for each rank.
//!
//! The global batch of a step is a pure function of (seed, step) and of its size; a rank takes its slice of it. So two
//! ranks with six windows each see exactly what one rank with twelve sees, and a training can be continued at any
//! step. Validation windows are the same at every evaluation, and are divided among the ranks without padding.

use anyhow::Result;
use bonfire::World;
use bonfire::collective::{Rank, WorldSize};
use bonfire::config::Config;
use burn::tensor::Device;
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::text::{TextBatch, TextWindows};

/// Random windows of a text, the same for every rank with the same seed.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    pub seed: u64,
    pub windows: usize,
    pub batch: usize,
}

impl Sampler {
    pub fn windows(&self, step: u64, rank: Rank, world_size: WorldSize) -> Vec<usize> {
        assert!(world_size.contains(rank), "rank {rank} is in a world of {world_size}");
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(step);
        // The slices of lower ranks are drawn and dropped: the draw of a window depends on those
        // before it, and a few hundred draws cost nothing beside a training step.
        let drawn = (0..).map(|_| rng.random_range(0..self.windows));
        let skipped = rank.index() * self.batch;
        drawn.skip(skipped).take(self.batch).collect()
    }
}

/// Returns the forward passes of a step, and this rank's batch of each pass: windows that differ among the ranks of
/// `data`.
pub fn passes(
    text: &TextWindows,
    config: &Config,
    data: &World,
    device: &Device,
) -> Result<(u64, impl Fn(u64) -> TextBatch + Send + Sync + use<>)> {
    let (text, device) = (text.clone(), device.clone());
    let (rank, world_size) = (data.rank(), data.world_size());
    let batches = config.batches(world_size.get().into())?;
    let (micro, per_step) = (usize::try_from(batches.micro)?, batches.accumulation);
    let batch = micro * usize::try_from(per_step)?;
    let sampler = Sampler { seed: config.seed, windows: text.count(), batch };
    let of_pass = move |pass| {
        let windows = sampler.windows(pass / per_step, rank, world_size);
        let first = (pass % per_step) as usize * micro;
        text.batch(&windows[first..first + micro], &device)
    };
    Ok((per_step, of_pass))
}

/// Selects at most `count` of a text's windows, spread evenly.
pub fn spread(windows: usize, count: usize) -> Vec<usize> {
    let count = count.min(windows);
    (0..count).map(|place| place * windows / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(batch: usize) -> Sampler {
        Sampler { seed: 5, windows: 984, batch }
    }

    fn world(size: u32) -> WorldSize {
        WorldSize::new(size).unwrap()
    }

    #[test]
    fn ranks_partition_the_global_batch() {
        for step in 0..20 {
            let whole = sampler(12).windows(step, Rank::new(0), world(1));
            for (ranks, batch) in [(2, 6), (3, 4), (4, 3), (12, 1)] {
                let world = world(ranks);
                let slices = world.ranks().map(|rank| sampler(batch).windows(step, rank, world));
                assert_eq!(slices.collect::<Vec<_>>().concat(), whole, "{ranks} ranks");
            }
        }
    }

    #[test]
    fn steps_and_seeds_draw_different_windows_again_and_again() {
        let windows =
            |seed, step| Sampler { seed, ..sampler(8) }.windows(step, Rank::new(0), world(1));
        assert_eq!(windows(1, 3), windows(1, 3));
        assert_ne!(windows(1, 3), windows(1, 4));
        assert_ne!(windows(1, 3), windows(2, 3));
    }

    #[test]
    fn every_window_is_drawn() {
        let small = Sampler { seed: 1, windows: 4, batch: 100 };
        let mut windows = small.windows(0, Rank::new(0), world(1));
        windows.sort_unstable();
        windows.dedup();
        assert_eq!(windows, [0, 1, 2, 3]);
    }

    #[test]
    fn validation_windows_are_spread_and_apart() {
        for (windows, count) in [(1, 1), (2, 5), (62, 7), (62, 1000), (100, 100)] {
            let spread = spread(windows, count);
            assert_eq!(spread.len(), count.min(windows));
            assert!(spread.is_sorted_by(|one, next| one < next), "{spread:?}");
            assert!(spread.iter().all(|&window| window < windows), "{spread:?}");
        }
    }
}
