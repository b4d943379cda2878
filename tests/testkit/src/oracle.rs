//! What a reduction must give, computed the plain way.

use bonfire_collective::{Element, ReduceOp};
use half::{bf16, f16};

/// An element type with sample values and a readable reduction.
pub trait Sample: Element + PartialEq + std::fmt::Debug {
    /// A value that depends on the seed only: both signs where there are two, many magnitudes.
    fn sample(seed: u64) -> Self;

    /// The reduction of one element of every rank, in rank order: every float step in f32 or f64,
    /// rounded to the type at the end; integers wrap, and their mean is cut towards zero.
    fn reduce(values: &[Self], reduce: ReduceOp) -> Self;
}

/// Scrambles a seed (SplitMix64, Steele et al. 2014).
pub fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// In -1..1, with magnitudes down to 2^-20.
fn real(seed: u64) -> f64 {
    let bits = scramble(seed);
    let mantissa = (bits >> 32) as f64 / f64::from(u32::MAX) * 2.0 - 1.0;
    mantissa * f64::powi(2.0, -((bits % 21) as i32))
}

macro_rules! float_sample {
    ($type:ty, $wide:ty, $from:expr, $to:expr) => {
        impl Sample for $type {
            fn sample(seed: u64) -> Self {
                $from(real(seed) as $wide)
            }

            fn reduce(values: &[Self], reduce: ReduceOp) -> Self {
                let wide = values.iter().map(|value| $to(*value));
                let result: $wide = match reduce {
                    ReduceOp::Sum => wide.reduce(|a, b| a + b),
                    ReduceOp::Mean => {
                        wide.reduce(|a, b| a + b).map(|sum| sum / values.len() as $wide)
                    }
                    ReduceOp::Min => wide.reduce(<$wide>::min),
                    ReduceOp::Max => wide.reduce(<$wide>::max),
                    ReduceOp::Product => wide.reduce(|a, b| a * b),
                    ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
                        panic!("{reduce} is not defined for floats")
                    }
                }
                .expect("at least one rank");
                $from(result)
            }
        }
    };
}

macro_rules! integer_sample {
    ($type:ty) => {
        impl Sample for $type {
            fn sample(seed: u64) -> Self {
                scramble(seed) as $type
            }

            fn reduce(values: &[Self], reduce: ReduceOp) -> Self {
                let values = values.iter().copied();
                let ranks = values.len() as $type;
                match reduce {
                    ReduceOp::Sum => values.fold(0, <$type>::wrapping_add),
                    ReduceOp::Mean => values.fold(0, <$type>::wrapping_add) / ranks,
                    ReduceOp::Min => values.min().expect("at least one rank"),
                    ReduceOp::Max => values.max().expect("at least one rank"),
                    ReduceOp::Product => values.fold(1, <$type>::wrapping_mul),
                    ReduceOp::And => values.fold(!0, |a, b| a & b),
                    ReduceOp::Or => values.fold(0, |a, b| a | b),
                    ReduceOp::Xor => values.fold(0, |a, b| a ^ b),
                }
            }
        }
    };
}

float_sample!(f32, f32, std::convert::identity, std::convert::identity);
float_sample!(f64, f64, std::convert::identity, std::convert::identity);
float_sample!(f16, f32, f16::from_f32, f16::to_f32);
float_sample!(bf16, f32, bf16::from_f32, bf16::to_f32);
integer_sample!(i32);
integer_sample!(i64);
integer_sample!(u8);
integer_sample!(u32);
integer_sample!(i8);
integer_sample!(i16);
integer_sample!(u16);
integer_sample!(u64);

impl Sample for bool {
    fn sample(seed: u64) -> Self {
        scramble(seed) & 1 == 1
    }

    fn reduce(values: &[Self], reduce: ReduceOp) -> Self {
        match reduce {
            ReduceOp::And | ReduceOp::Min | ReduceOp::Product => values.iter().all(|value| *value),
            ReduceOp::Or | ReduceOp::Max => values.iter().any(|value| *value),
            ReduceOp::Xor => values.iter().filter(|value| **value).count() % 2 == 1,
            ReduceOp::Sum | ReduceOp::Mean => panic!("{reduce} is not defined for bool"),
        }
    }
}
