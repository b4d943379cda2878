//! Elements as they are stored; optimizers have their master values in 32 bits.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// An element of 16 bits, or of 32 for gradients.
pub(crate) trait Stored: Pod + Default + PartialEq + Send + Sync {
    /// The values of `from`, which `to` has room for.
    fn widen(from: &[Self], to: &mut [f32]);

    /// The values of `from`, which `to` has room for, rounded to nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

macro_rules! stored {
    ($type:ty) => {
        impl Stored for $type {
            #[inline(always)]
            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }

            #[inline(always)]
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    };
}
stored!(f16);
stored!(bf16);

impl Stored for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}
