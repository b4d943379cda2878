//! Random numbers that are drawn twice.

use burn::tensor::{DType, Device, Distribution, Tensor};

/// Bits of a seed in one drawn number: f32 holds them exactly.
const BITS: u32 = 24;

/// Numbers that make a seed of 64 bits.
const NUMBERS: usize = 3;

/// The seeds of a device for either run of a segment, and after the second.
#[derive(Debug)]
pub(super) struct Seeds {
    device: Device,
    run: u64,
    after: u64,
}

impl Seeds {
    pub(super) fn draw(device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let range = Distribution::Uniform(0.0, f64::from(1 << BITS));
        let drawn = Tensor::<1>::random([2 * NUMBERS], range, (&device, DType::F32)).into_data();
        let drawn: Vec<u64> = drawn.iter::<f32>().map(|number| number as u64).collect();
        let seed = |numbers: &[u64]| numbers.iter().fold(0, |seed, number| (seed << BITS) ^ number);
        let (run, after) = drawn.split_at(NUMBERS);
        let seeds = Self { device, run: seed(run), after: seed(after) };
        seeds.device.seed(seeds.run);
        seeds
    }

    /// Runs `run` with the same numbers again. Later draws do not depend on them.
    pub(super) fn repeat<R>(self, run: impl FnOnce() -> R) -> R {
        self.device.seed(self.run);
        let result = run();
        self.device.seed(self.after);
        result
    }
}
