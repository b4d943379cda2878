//! Inputs that tell a right kernel from a wrong one, and comparison by bits.

use half::{bf16, f16};

use crate::element::Arithmetic;

/// Elements whose every operation can be compared.
pub(crate) trait Values: Arithmetic {
    /// `elems` of them, the same for the same seed.
    fn values(seed: u64, elems: usize) -> Vec<Self>;

    /// Whether it is not a number.
    fn is_nan(&self) -> bool;

    /// Panics at the first difference in bits; NaN is NaN, whatever its bits.
    fn assert_same(found: &[Self], expected: &[Self], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}: length");
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = bytemuck::bytes_of(found) == bytemuck::bytes_of(expected)
                || found.is_nan() && expected.is_nan();
            assert!(same, "{what}, element {index}: {found:?}, not {expected:?}");
        }
    }
}

/// A counter mixed to 64 random bits (SplitMix64).
fn random(seed: u64, index: usize) -> u64 {
    let mut bits = (seed << 32 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Numbers of both signs and many magnitudes whose sums round, and now and then a special one.
fn float(seed: u64, index: usize) -> f64 {
    let bits = random(seed, index);
    let fraction = (bits >> 12) as f64 / (1_u64 << 52) as f64 - 0.5;
    match bits % 61 {
        0 => 0.0,
        1 => -0.0,
        2 => f64::INFINITY,
        3 => f64::NAN,
        _ => fraction * f64::powi(2.0, (bits % 13) as i32 - 6),
    }
}

macro_rules! float {
    ($type:ty, $from:expr) => {
        impl Values for $type {
            fn values(seed: u64, elems: usize) -> Vec<Self> {
                (0..elems).map(|index| $from(float(seed, index))).collect()
            }

            fn is_nan(&self) -> bool {
                <$type>::is_nan(*self)
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        impl Values for $type {
            fn values(seed: u64, elems: usize) -> Vec<Self> {
                (0..elems)
                    .map(|index| random(seed, index) as $type)
                    .collect()
            }

            fn is_nan(&self) -> bool {
                false
            }
        }
    };
}

float!(f64, std::convert::identity);
float!(f32, |value| value as f32);
float!(f16, f16::from_f64);
float!(bf16, bf16::from_f64);
integer!(i32);
integer!(i64);
integer!(u8);
integer!(u32);
integer!(u64);
