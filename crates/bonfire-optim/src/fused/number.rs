//! Operands of a rule: one number on the CPU, a tensor on any other device.

use std::ops::{Add, Div, Mul, Sub};

use burn::tensor::Tensor;

/// The operations of optimizers. Constants are rounded to the type of the numbers, as in Burn, and nothing is
/// contracted, so that numbers and tensors have the same bits.
pub(crate) trait Number:
    Clone + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn times(self, factor: f64) -> Self;
    fn over(self, divisor: f64) -> Self;
    fn plus(self, term: f64) -> Self;
    fn sqrt(self) -> Self;

    /// -1, 0 or 1; 0 for NaN.
    fn sign(self) -> Self;
}

/// A number type with CPU instructions.
pub(crate) trait Real: Number + Copy + Send + Sync {}

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {}

        impl Number for $type {
            #[inline(always)]
            fn times(self, factor: f64) -> Self {
                self * factor as $type
            }

            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                self / divisor as $type
            }

            #[inline(always)]
            fn plus(self, term: f64) -> Self {
                self + term as $type
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }

            #[inline(always)]
            fn sign(self) -> Self {
                if self.is_nan() || self == 0.0 { 0.0 } else { self.signum() }
            }
        }
    };
}
real!(f32);
real!(f64);

impl<const D: usize> Number for Tensor<D> {
    fn times(self, factor: f64) -> Self {
        self.mul_scalar(factor)
    }

    fn over(self, divisor: f64) -> Self {
        self.div_scalar(divisor)
    }

    fn plus(self, term: f64) -> Self {
        self.add_scalar(term)
    }

    fn sqrt(self) -> Self {
        Tensor::sqrt(self)
    }

    fn sign(self) -> Self {
        Tensor::sign(self)
    }
}
