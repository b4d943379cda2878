//! The rectifier in one pass over memory.

use burn::tensor::{Tensor, activation};

/// Applies the rectifier: `x` where that is positive, else 0. Any shape; the output has that of `x` and its type.
///
/// On the CPU (Flex) 32-bit values take one pass over memory each way, where Burn's [`relu`](activation::relu) takes
/// two; the bits are the same. On other devices, and for other types, it calls Burn's.
#[must_use]
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if super::memory::is_here(&x) {
        use super::memory::{mapped, mapped_gradient};

        let kept = x.clone().without_autodiff();
        return crate::custom_gradient(
            x,
            |x| {
                mapped(
                    x,
                    #[inline(always)]
                    |x| if x <= 0.0 { 0.0 } else { x },
                )
            },
            |gradient| {
                mapped_gradient(
                    kept,
                    gradient,
                    #[inline(always)]
                    |gradient, x| if x <= 0.0 { 0.0 } else { gradient },
                )
            },
        );
    }
    activation::relu(x)
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
