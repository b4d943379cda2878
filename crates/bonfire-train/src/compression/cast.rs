//! Values of one type as values of another: once rounded to 16 bits, or widened.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::values::BucketBuffer;

/// Overwrites `target` with the values of `source`: rounded to nearest, ties to even, where it is narrower; values
/// that are too large become infinite.
///
/// # Panics
/// If the lengths differ, or neither type or both have 16 bits.
pub(crate) fn cast(source: &BucketBuffer, target: &mut BucketBuffer) {
    assert_eq!(source.len(), target.len(), "a cast keeps the length");
    match (source, target) {
        (BucketBuffer::F32(from), BucketBuffer::F16(to)) => to.convert_from_f32_slice(from),
        (BucketBuffer::F32(from), BucketBuffer::BF16(to)) => to.convert_from_f32_slice(from),
        (BucketBuffer::F64(from), BucketBuffer::F16(to)) => {
            each(from, to, |v| f16::from_f32(to_odd(v)))
        }
        (BucketBuffer::F64(from), BucketBuffer::BF16(to)) => {
            each(from, to, |v| bf16::from_f32(to_odd(v)))
        }
        (BucketBuffer::F16(from), BucketBuffer::F32(to)) => from.convert_to_f32_slice(to),
        (BucketBuffer::BF16(from), BucketBuffer::F32(to)) => from.convert_to_f32_slice(to),
        (BucketBuffer::F16(from), BucketBuffer::F64(to)) => each(from, to, f16::to_f64),
        (BucketBuffer::BF16(from), BucketBuffer::F64(to)) => each(from, to, bf16::to_f64),
        (source, target) => {
            panic!("no cast from {} to {} is needed", source.dtype(), target.dtype())
        }
    }
}

/// An f64 as the f32 next to it: rounded to odd, so that rounding it once more to nearest gives what
/// rounding once would have given (Boldo and Melquiond 2008). The conversions of `half` from f64 drop
/// bits, and with them the side of a tie that a number is on.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let exact = f64::from(nearest) == value;
    if exact || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    if f64::from(nearest).abs() < value.abs() {
        f32::from_bits(nearest.to_bits() + 1)
    } else {
        f32::from_bits(nearest.to_bits() - 1)
    }
}

fn each<S: Copy, T>(source: &[S], target: &mut [T], convert: impl Fn(S) -> T) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = convert(*source);
    }
}

#[cfg(test)]
mod tests {
    use bonfire_plan::DType;

    use super::*;

    fn through(dtype: DType, values: &[f32]) -> Vec<f32> {
        let wide = BucketBuffer::F32(values.to_vec().into());
        let mut narrow = BucketBuffer::zeros(dtype, values.len());
        cast(&wide, &mut narrow);
        let mut back = BucketBuffer::zeros(DType::F32, values.len());
        cast(&narrow, &mut back);
        back.as_f32_mut().to_vec()
    }

    /// The neighbours of 1 are 2^-10 (f16) and 2^-7 (bf16) away.
    #[test]
    fn ties_go_to_the_even_neighbour() {
        let step = f32::powi(2.0, -10);
        let odd = 1.0 + step;
        let found = through(DType::F16, &[1.0 + step / 2.0, odd + step / 2.0, -odd]);
        assert_eq!(found, [1.0, 1.0 + 2.0 * step, -odd]);
        let step = f32::powi(2.0, -7);
        let odd = 1.0 + step;
        let found = through(DType::BF16, &[1.0 + step / 2.0, odd + step / 2.0, -odd]);
        assert_eq!(found, [1.0, 1.0 + 2.0 * step, -odd]);
    }

    #[test]
    fn what_is_too_large_is_infinite_and_what_is_too_small_zero() {
        let found = through(DType::F16, &[65504.0, 65520.0, -1e30, 1e-30]);
        assert_eq!(found, [65504.0, f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        assert_eq!(through(DType::BF16, &[f32::MAX]), [f32::INFINITY]);
        assert!(through(DType::BF16, &[f32::NAN])[0].is_nan());
    }

    #[test]
    fn doubles_are_rounded_once() {
        for (dtype, step) in [(DType::F16, f64::powi(2.0, -10)), (DType::BF16, f64::powi(2.0, -7))]
        {
            // At a tie and at either side of it: a rounding to f32 in between would make them one.
            let odd = 1.0 + step;
            let tie = odd + step / 2.0;
            let hair = f64::powi(2.0, -40);
            let given = vec![tie, tie - hair, -tie + hair, tie + hair, odd, 1e-60];
            let wide = BucketBuffer::F64(given.into());
            let mut narrow = BucketBuffer::zeros(dtype, wide.len());
            cast(&wide, &mut narrow);
            let mut back = BucketBuffer::zeros(DType::F64, wide.len());
            cast(&narrow, &mut back);
            let BucketBuffer::F64(found) = back else { panic!("it was made of f64") };
            let even = odd + step;
            assert_eq!(&found[..], [even, odd, -odd, even, odd, 0.0]);
        }
    }
}
