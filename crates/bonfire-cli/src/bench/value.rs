//! Test data whose reduction is known exactly.

use bonfire_collective::{Element, ReduceOp};
use half::{bf16, f16};

/// An element type that small whole numbers fit into.
pub(super) trait Value: Element + PartialEq {
    /// The element nearest to `number`.
    fn from_number(number: f64) -> Self;

    /// What the reduction of these small whole numbers must be.
    fn expected(numbers: &[u32], redop: ReduceOp) -> Self {
        let sum: u32 = numbers.iter().sum();
        Self::from_number(match redop {
            ReduceOp::Sum => f64::from(sum),
            ReduceOp::Mean => Self::exact_mean(f64::from(sum), numbers.len()),
            ReduceOp::Min => f64::from(numbers.iter().copied().min().unwrap_or(0)),
            ReduceOp::Max => f64::from(numbers.iter().copied().max().unwrap_or(0)),
        })
    }

    /// A mean as this type has it: exact for floats, cut towards zero for integers.
    fn exact_mean(sum: f64, by: usize) -> f64;
}

macro_rules! float_value {
    ($type:ty, $from:expr) => {
        impl Value for $type {
            fn from_number(number: f64) -> Self {
                $from(number)
            }
            fn exact_mean(sum: f64, by: usize) -> f64 {
                sum / by as f64
            }
        }
    };
}

macro_rules! integer_value {
    ($type:ty) => {
        impl Value for $type {
            fn from_number(number: f64) -> Self {
                number as $type
            }
            fn exact_mean(sum: f64, by: usize) -> f64 {
                (sum / by as f64).trunc()
            }
        }
    };
}

float_value!(f32, |number| number as f32);
float_value!(f64, |number| number);
float_value!(f16, |number| f16::from_f32(number as f32));
float_value!(bf16, |number| bf16::from_f32(number as f32));
integer_value!(i32);
integer_value!(i64);
integer_value!(u8);
integer_value!(u32);

/// The number that `rank` has at `index` of buffer `buffer`, below `limit`.
pub(super) fn number(rank: usize, index: usize, buffer: usize, limit: u32) -> u32 {
    ((index * 7 + rank * 31 + buffer * 5) % limit as usize) as u32
}

/// Numbers below this sum to at most 255 over all ranks (where they can), so that every partial sum
/// is exact in every type.
pub(super) fn limit(world_size: usize) -> u32 {
    (256 / world_size as u32).clamp(2, 13)
}
