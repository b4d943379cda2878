//! Multiplication of a buffer by a number, in place.
//!
//! The product is taken in the wide type (f32 for the 16-bit floats) and rounded once to the
//! element. Bytes moved per element: twice its size; memory is the bound.

use crate::element::{FloatArithmetic, FloatElement, Fold};
use crate::reduce::Width;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod kernel;

/// One variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale {
    /// What the buffer holds.
    pub element: FloatElement,
    /// How much is read at once.
    pub width: Width,
}

/// What the kernel does, on the CPU.
pub fn reference<T: FloatArithmetic>(buffer: &mut [T], factor: T::Partial) {
    for element in buffer {
        *element = T::narrow(T::combine(Fold::Product, element.widen(), factor));
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn the_product_is_rounded_once() {
        // 60000 * 2 is no f16, but the factor is f32: half of it is.
        let mut buffer = [f16::from_f32(60_000.0), f16::from_f32(0.1)];
        let tenth = buffer[1].to_f32();
        reference(&mut buffer, 0.3);
        assert_eq!(buffer[0], f16::from_f32(60_000.0 * 0.3));
        assert_eq!(buffer[1], f16::from_f32(tenth * 0.3));
    }
}
