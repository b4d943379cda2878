//! Sample values of every element type.

use bonfire_collective::{Element, ReduceOp};
use half::{bf16, f16};

pub(super) trait Sample: Element + PartialEq + std::fmt::Debug {
    /// A value that depends on the seed only: both signs where there are two, many magnitudes, small enough
    /// that no sum overflows a float.
    fn sample(seed: u64) -> Self;

    /// A whole number from 0 to 16: sums of as many as sixteen are exact in every type, in any order, and so are
    /// means of 1, 2 and 4.
    fn whole(seed: u64) -> Self;

    /// The values folded from left to right; `None` for reductions that the self-test does not fold itself.
    fn left_fold(values: &[Self], reduce: ReduceOp) -> Option<Self>;
}

/// Scrambles a seed (SplitMix64, Steele et al. 2014).
pub(super) fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// In -1..1, with magnitudes down to 2^-16.
fn real(seed: u64) -> f64 {
    let bits = scramble(seed);
    let mantissa = (bits >> 32) as f64 / f64::from(u32::MAX) * 2.0 - 1.0;
    mantissa * f64::powi(2.0, -((bits % 17) as i32))
}

macro_rules! samples {
    ($($type:ty, $add:expr, $seed:ident => $value:expr);+ $(;)?) => {$(
        impl Sample for $type {
            fn sample($seed: u64) -> Self {
                $value
            }

            fn whole(seed: u64) -> Self {
                Self::from((scramble(seed) % 17) as u8)
            }

            fn left_fold(values: &[Self], reduce: ReduceOp) -> Option<Self> {
                let values = values.iter().copied();
                match reduce {
                    ReduceOp::Sum => values.reduce($add),
                    ReduceOp::Max => values.reduce(|a, b| if a > b { a } else { b }),
                    _ => None,
                }
            }
        }
    )+};
}

samples! {
    f32, |a, b| a + b, seed => real(seed) as f32;
    f64, |a, b| a + b, seed => real(seed);
    f16, |a, b| a + b, seed => f16::from_f64(real(seed));
    bf16, |a, b| a + b, seed => bf16::from_f64(real(seed));
    i32, i32::wrapping_add, seed => scramble(seed) as i32;
    i64, i64::wrapping_add, seed => scramble(seed) as i64;
    u8, u8::wrapping_add, seed => scramble(seed) as u8;
    u32, u32::wrapping_add, seed => scramble(seed) as u32;
}

pub(super) type Draw<T> = fn(u32, u64, usize) -> Vec<T>;

pub(super) fn samples<T: Sample>(rank: u32, case: u64, count: usize) -> Vec<T> {
    seeds(rank, case, count).map(T::sample).collect()
}

pub(super) fn wholes<T: Sample>(rank: u32, case: u64, count: usize) -> Vec<T> {
    seeds(rank, case, count).map(T::whole).collect()
}

fn seeds(rank: u32, case: u64, count: usize) -> impl Iterator<Item = u64> {
    (0..count as u64).map(move |index| (case << 44) ^ (u64::from(rank) << 36) ^ index)
}
