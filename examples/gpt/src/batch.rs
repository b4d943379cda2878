//! Which windows of the text a rank works on.
//!
//! The global batch of a step is a pure function of (seed, step) and of its size; a rank takes its
//! slice of it. So two ranks with six windows each see exactly what one rank with twelve sees, and
//! a training can be continued at any step. Validation windows are the same at every evaluation
//! and are divided among the ranks without padding.

use std::ops::Range;

use bonfire::{Rank, WorldSize};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Windows and, at each of their places, the character that follows: `[B, T]` both.
#[derive(Debug, Clone)]
pub struct Batch {
    /// What the model reads.
    pub tokens: Tensor<2, Int>,
    /// What it should say.
    pub targets: Tensor<2, Int>,
}

/// Random windows of a text, the same for every rank that knows the seed.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    /// Makes the sequence of batches.
    pub seed: u64,
    /// Characters in the text.
    pub text_len: usize,
    /// Characters in a window.
    pub context: usize,
    /// Windows that each rank works on in a step.
    pub batch: usize,
}

impl Sampler {
    /// The first characters of the windows of `rank` in `step`.
    pub fn starts(&self, step: usize, rank: Rank, world_size: WorldSize) -> Vec<usize> {
        assert!(
            world_size.contains(rank),
            "rank {rank} is in a world of {world_size}"
        );
        assert!(
            self.text_len > self.context,
            "{} characters hold a window of {} and its successor",
            self.text_len,
            self.context
        );
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(step as u64);
        // The slices of lower ranks are drawn and dropped: the draw of a window depends on those
        // before it, and a few hundred draws cost nothing beside a training step.
        let mut starts = (0..).map(|_| rng.random_range(0..self.text_len - self.context));
        let skipped = rank.index() * self.batch;
        starts.by_ref().skip(skipped).take(self.batch).collect()
    }
}

/// At most `count` windows spread evenly over a text, none overlapping another.
pub fn spread_windows(text_len: usize, context: usize, count: usize) -> Vec<usize> {
    assert!(
        text_len > context,
        "{text_len} characters hold a window of {context}"
    );
    // Each window needs its own characters; the last one's successor lies behind it.
    let places = (text_len - 1) / context;
    let count = count.min(places);
    (0..count)
        .map(|window| window * places / count * context)
        .collect()
}

/// Copies windows of a text to the device.
pub fn load(text: &[i32], starts: &[usize], context: usize, device: &Device) -> Batch {
    let gather = |shift: usize| {
        let window = |&start: &usize| &text[characters(start + shift, context)];
        let values: Vec<i32> = starts.iter().flat_map(window).copied().collect();
        Tensor::from_data(TensorData::new(values, [starts.len(), context]), device)
    };
    Batch {
        tokens: gather(0),
        targets: gather(1),
    }
}

fn characters(start: usize, context: usize) -> Range<usize> {
    start..start + context
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT_LEN: usize = 1000;

    fn sampler(batch: usize) -> Sampler {
        Sampler {
            seed: 5,
            text_len: TEXT_LEN,
            context: 16,
            batch,
        }
    }

    fn world(size: u32) -> WorldSize {
        WorldSize::new(size).unwrap()
    }

    #[test]
    fn ranks_partition_the_global_batch() {
        for step in 0..20 {
            let whole = sampler(12).starts(step, Rank::new(0), world(1));
            for (ranks, batch) in [(2, 6), (3, 4), (4, 3), (12, 1)] {
                let world = world(ranks);
                let slices = world
                    .ranks()
                    .map(|rank| sampler(batch).starts(step, rank, world));
                assert_eq!(slices.collect::<Vec<_>>().concat(), whole, "{ranks} ranks");
            }
        }
    }

    #[test]
    fn steps_and_seeds_draw_different_windows_again_and_again() {
        let starts =
            |seed, step| Sampler { seed, ..sampler(8) }.starts(step, Rank::new(0), world(1));
        assert_eq!(starts(1, 3), starts(1, 3));
        assert_ne!(starts(1, 3), starts(1, 4));
        assert_ne!(starts(1, 3), starts(2, 3));
    }

    #[test]
    fn every_window_fits_and_every_place_is_drawn() {
        let small = Sampler {
            seed: 1,
            text_len: 20,
            context: 16,
            batch: 100,
        };
        let mut starts = small.starts(0, Rank::new(0), world(1));
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts, [0, 1, 2, 3]);
    }

    #[test]
    fn validation_windows_are_spread_and_apart() {
        for (text_len, count) in [(17, 1), (33, 5), (1000, 7), (1000, 1000), (1601, 100)] {
            let starts = spread_windows(text_len, 16, count);
            assert_eq!(starts.len(), count.min((text_len - 1) / 16));
            assert!(
                starts.windows(2).all(|pair| pair[0] + 16 <= pair[1]),
                "{starts:?}"
            );
            assert!(
                starts.iter().all(|start| start + 16 < text_len),
                "{starts:?}"
            );
        }
    }

    #[test]
    fn targets_are_the_successors() {
        let text: Vec<i32> = (0..100).collect();
        let batch = load(&text, &[10, 50], 3, &Device::flex());
        let values =
            |tensor: Tensor<2, Int>| -> Vec<i64> { tensor.into_data().iter::<i64>().collect() };
        assert_eq!(values(batch.tokens), [10, 11, 12, 50, 51, 52]);
        assert_eq!(values(batch.targets), [11, 12, 13, 51, 52, 53]);
    }
}
