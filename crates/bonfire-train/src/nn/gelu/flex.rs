//! GELU and its gradient in the memory of tensors on Flex.
//!
//! With a = |x| and e = exp(-a²/2), the normal distribution has the density e / sqrt(2π), and e R(a) is its
//! probability beyond a, where R is Mills' ratio over sqrt(2π). R is smooth: in t = 1 / (1 + 0.26 a) it is t times a
//! polynomial, whose coefficients are the best ones for relative errors on 0 <= a <= 13.2 (Lawson's algorithm); it is within
//! 2e-8. Beyond that e is 0 in 32 bits. The exponential is that of Cody and Waite (1980): a power of two, times
//! a polynomial on half a binary order of magnitude, with coefficients of the same making, within 2e-9.
//!
//! Products and sums are rounded one by one, so all processors compute the same bits.

use std::f32::consts::LOG2_E;

use burn::tensor::Tensor;

use crate::nn::memory::{mapped, mapped_gradient};

const FALL: f32 = 0.26;

/// Coefficients of the tail, from the constant on.
const TAIL: [f32; 9] = [
    0.103_762_664,
    0.102_957_14,
    0.103_445_17,
    0.049_437_51,
    0.164_623_56,
    -0.156_206_43,
    0.256_044_9,
    -0.155_017_1,
    0.030_952_55,
];

/// Coefficients of the exponential, from the constant on.
const EXPONENTIAL: [f32; 7] =
    [1.0, 1.0, 0.499_999_9, 0.166_664_2, 0.041_668_225, 0.008_374_824, 0.001_383_683_5];

/// The largest a²/2 whose exponential is a normal number.
const LARGEST: f32 = 87.0;

/// Added to a number of less than 22 bits, it rounds it to an integer, which is then in the lowest bits.
const ROUNDING: f32 = 1.5 * (1 << 23) as f32;

/// The logarithm of 2 as a sum whose first part has few bits, so that its product with a small integer is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// The density at 0: 1 / sqrt(2π).
const DENSITY_AT_0: f32 = 0.398_942_3;

pub(super) fn forward<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    mapped(
        x,
        #[inline(always)]
        |x| x * probability(x).0,
    )
}

/// The gradient of the input `x`, of that of the output.
pub(super) fn backward<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<D> {
    mapped_gradient(
        x,
        gradient,
        #[inline(always)]
        |gradient, x| {
            let (below, density) = probability(x);
            gradient * (below + x * density)
        },
    )
}

/// The probability of a standard normal value below `x`, and the density there.
#[inline(always)]
fn probability(x: f32) -> (f32, f32) {
    let distance = x.abs();
    let t = 1.0 / (1.0 + FALL * distance);
    let exponential = exp_of_minus(0.5 * distance * distance);
    let beyond = exponential * (polynomial(TAIL, t) * t);
    let below = if x < 0.0 { beyond } else { 1.0 - beyond };
    (below, exponential * DENSITY_AT_0)
}

/// exp(-x) for x >= 0; 0 where that is not a normal number.
#[inline(always)]
fn exp_of_minus(x: f32) -> f32 {
    let power = -x.min(LARGEST);
    let rounded = power * LOG2_E + ROUNDING;
    let exponent = rounded - ROUNDING;
    let rest = (power - exponent * LN_2[0]) - exponent * LN_2[1];
    let scale = (rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    let exponential = polynomial(EXPONENTIAL, rest) * f32::from_bits(scale);
    if x > LARGEST { 0.0 } else { exponential }
}

#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut sum = coefficients[N - 1];
    for index in (0..N - 1).rev() {
        sum = sum * x + coefficients[index];
    }
    sum
}
