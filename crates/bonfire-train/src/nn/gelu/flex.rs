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

use burn::backend::flex::FlexTensor;
use burn::backend::{DispatchDevice, Flex};
use burn::tensor::{DType, Tensor};
use pulp::Arch;
use rayon::prelude::*;

/// Values that a thread takes at once: 64 KiB of inputs, which last longer than it takes to hand them over.
const PIECE_ELEMS: usize = 16 << 10;

/// How fast t falls.
const FALL: f32 = 0.26;

/// Of the tail, from the constant on.
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

/// Of the exponential, from the constant on.
const EXPONENTIAL: [f32; 7] = [
    1.0,
    1.0,
    0.499_999_9,
    0.166_664_2,
    0.041_668_225,
    0.008_374_824,
    0.001_383_683_5,
];

/// The largest a²/2 whose exponential is a normal number.
const LARGEST: f32 = 87.0;

/// Added to a number of less than 22 bits, it rounds it to an integer, which is then in the lowest bits.
const ROUNDING: f32 = 1.5 * (1 << 23) as f32;

/// The logarithm of 2 as a sum whose first part has few bits, so that its product with a small integer is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// 1 / sqrt(2π)
const DENSITY_AT_0: f32 = 0.398_942_3;

/// Whether a tensor is computed here: 32-bit values on Flex.
pub(super) fn has<const D: usize>(x: &Tensor<D>) -> bool {
    let device = x.device().without_autodiff();
    x.dtype() == DType::F32 && matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

pub(super) fn forward<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let x = primitive(x).to_contiguous();
    let mut output = FlexTensor::empty(x.layout().shape().clone(), DType::F32);
    in_pieces(
        &mut output,
        &x,
        #[inline(always)]
        |_, x| x * probability(x).0,
    );
    Tensor::from_primitive::<Flex>(output)
}

/// The gradient of the input `x`, of that of the output.
pub(super) fn backward<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<D> {
    let x = primitive(x).to_contiguous();
    // In its own memory where nobody else sees that.
    let mut gradient = FlexTensor::from_data(primitive(gradient).into_data());
    in_pieces(
        &mut gradient,
        &x,
        #[inline(always)]
        |gradient, x| {
            let (below, density) = probability(x);
            gradient * (below + x * density)
        },
    );
    Tensor::from_primitive::<Flex>(gradient)
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

/// Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut sum = coefficients[N - 1];
    for index in (0..N - 1).rev() {
        sum = sum * x + coefficients[index];
    }
    sum
}

/// Gives each value of `target` that of `map` of itself and of its input, on all threads of the rayon pool that this is
/// called in.
fn in_pieces(target: &mut FlexTensor, x: &FlexTensor, map: impl Fn(f32, f32) -> f32 + Copy + Sync) {
    let x = x.as_slice::<f32>().expect("row-major, of this type");
    let target = target.try_storage_mut().expect("nobody else sees it");
    let piece = |(target, x): (&mut [f32], &[f32])| {
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for (target, x) in target.iter_mut().zip(x) {
                    *target = map(*target, *x);
                }
            },
        );
    };
    if rayon::current_num_threads() == 1 {
        // Without waiting for another thread.
        return piece((target, x));
    }
    let pieces = target.par_chunks_mut(PIECE_ELEMS);
    pieces.zip(x.par_chunks(PIECE_ELEMS)).for_each(piece);
}

fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let primitive = tensor.try_into_primitive::<Flex>();
    primitive.expect("its device is Flex")
}
