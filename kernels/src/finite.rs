//! The search for an infinity or a NaN in a buffer, for mixed precision: a step whose gradients are
//! not finite on any rank is skipped on all.
//!
//! The kernel sets a word to 1 if it finds one and leaves it alone otherwise, so that several
//! buffers share a word; who launches it clears the word first. Bytes moved per element: its size,
//! once; memory is the bound.

use crate::element::{FloatArithmetic, FloatElement};
use crate::reduce::Width;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod kernel;

/// One variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NonFinite {
    /// What the buffer holds.
    pub element: FloatElement,
    /// How much is read at once.
    pub width: Width,
}

/// What the kernel does, on the CPU.
pub fn reference<T: FloatArithmetic>(buffer: &[T], flag: &mut u32) {
    if buffer.iter().any(|element| !element.is_finite()) {
        *flag = 1;
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_flag_is_set_and_never_cleared() {
        let mut flag = 0;
        reference(
            &[f16::MAX, f16::MIN_POSITIVE_SUBNORMAL, f16::NEG_ZERO],
            &mut flag,
        );
        assert_eq!(flag, 0);
        reference(&[1.0_f64, f64::NEG_INFINITY], &mut flag);
        assert_eq!(flag, 1);
        reference(&[1.0_f32], &mut flag);
        assert_eq!(flag, 1);
        let mut flag = 0;
        reference(&[f32::NAN], &mut flag);
        assert_eq!(flag, 1);
    }
}
