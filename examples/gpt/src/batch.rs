//! Cuts a text into windows, with the next characters as targets, and selects those of each rank.
//!
//! The global batch of a step is a pure function of (seed, step) and of its size; a rank takes its slice of it. So two
//! ranks with six windows each see exactly what one rank with twelve sees, and a training can be continued at any
//! step. Validation windows are the same at every evaluation, and are divided among the ranks without padding.

use std::sync::Arc;

use bonfire::collective::{Rank, WorldSize};
use bonfire::trainer::Data;
use burn::tensor::{Device, Int, Tensor, TensorData};
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Windows and, for each of their characters, the next one: `[batch, context]` both.
#[derive(Clone, Debug)]
pub struct TextBatch {
    /// The input of the model.
    pub tokens: Tensor<2, Int>,
    /// The next characters, as targets.
    pub targets: Tensor<2, Int>,
}

/// All windows of a text, numbered from its beginning. Clones share the text.
#[derive(Clone, Debug)]
pub struct TextWindows {
    tokens: Arc<[i32]>,
    context: usize,
    /// From one window to the next, in characters.
    stride: usize,
}

impl TextWindows {
    /// Cuts windows of `context` characters, one behind the other.
    ///
    /// # Panics
    /// If not one fits with its successor.
    pub fn new(tokens: &[i32], context: usize) -> Self {
        assert!(tokens.len() > context, "{} characters, windows of {context}", tokens.len());
        Self { tokens: tokens.into(), context, stride: context }
    }

    /// Lets windows begin at every character, so that they overlap.
    #[must_use]
    pub fn at_every_character(self) -> Self {
        Self { stride: 1, ..self }
    }

    pub fn count(&self) -> usize {
        (self.tokens.len() - self.context - 1) / self.stride + 1
    }

    /// Makes a batch of the windows at `indices`, on `device`.
    ///
    /// # Panics
    /// If there are no indices, or one is out of range.
    pub fn batch(&self, indices: &[usize], device: &Device) -> TextBatch {
        assert!(!indices.is_empty(), "a batch of no windows has no size");
        let moved = |shift: usize| {
            let window = |index: &usize| {
                assert!(*index < self.count(), "window {index} of {}", self.count());
                &self.tokens[index * self.stride + shift..][..self.context]
            };
            let values: Vec<i32> = indices.iter().flat_map(window).copied().collect();
            Tensor::from_data(TensorData::new(values, [indices.len(), self.context]), device)
        };
        TextBatch { tokens: moved(0), targets: moved(1) }
    }
}

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

/// Returns the same windows for every evaluation, at most `count`.
pub fn validation(text: &TextWindows, count: usize, device: Device) -> Data<TextBatch> {
    let (text, windows) = (text.clone(), spread(text.count(), count));
    Data::new(windows.len(), move |indices: &[usize]| {
        let own: Vec<usize> = indices.iter().map(|index| windows[*index]).collect();
        text.batch(&own, &device)
    })
}

/// Selects at most `count` of a text's windows, spread evenly.
fn spread(windows: usize, count: usize) -> Vec<usize> {
    let count = count.min(windows);
    (0..count).map(|place| place * windows / count).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The windows of a text whose characters are numbered from 0, again after each 26.
    fn text(len: i32, context: usize) -> TextWindows {
        TextWindows::new(&(0..len).map(|place| place % 26).collect::<Vec<_>>(), context)
    }

    fn values(tensor: Tensor<2, Int>) -> Vec<i32> {
        tensor.into_data().iter::<i32>().collect()
    }

    #[test]
    fn targets_are_the_successors() {
        let windows = text(20, 3);
        let batch = windows.batch(&[0, 4], &Device::flex());
        assert_eq!(values(batch.tokens), [0, 1, 2, 12, 13, 14]);
        assert_eq!(values(batch.targets), [1, 2, 3, 13, 14, 15]);
        let everywhere = windows.at_every_character();
        let batch = everywhere.batch(&[4], &Device::flex());
        assert_eq!(values(batch.tokens), [4, 5, 6]);
        assert_eq!(text(9, 8).count(), 1);
    }

    proptest! {
        /// Windows behind each other predict every character once but the first and a rest that
        /// fills no window.
        #[test]
        fn windows_cover_a_text_without_overlap(len in 2..200_i32, context in 1..20_usize) {
            prop_assume!(len as usize > context);
            let windows = text(len, context);
            let all: Vec<usize> = (0..windows.count()).collect();
            let targets = values(windows.batch(&all, &Device::flex()).targets);
            let expected: Vec<i32> = (1..len).map(|place| place % 26).collect();
            prop_assert_eq!(&targets[..], &expected[..targets.len()]);
            prop_assert!(expected.len() - targets.len() < context);
            let everywhere = windows.at_every_character();
            prop_assert_eq!(everywhere.count(), len as usize - context);
        }
    }

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
