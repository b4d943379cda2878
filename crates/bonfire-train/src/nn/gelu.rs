//! The Gaussian error linear unit in one pass over memory.

#[cfg(feature = "flex")]
mod flex;
#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;

use burn::tensor::{Tensor, activation};

/// Applies the Gaussian error linear unit: `x` times the probability that a standard normal value is below it
/// (Hendrycks and Gimpel 2016, arXiv 1606.08415). Any shape; the output has that of `x` and its type.
///
/// On the CPU (Flex) 32-bit values are computed in vectors, forwards and backwards in one pass each, where Burn's
/// [`gelu`](activation::gelu) calls a function for each value. Values are within 2e-7 of the exact ones, relative to
/// the larger of 1 and `|x|`, as Burn's are; bits depend neither on the processor nor on the number of threads. On
/// other devices, and for other types, it calls Burn's.
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if super::memory::is_here(&x) {
        let kept = x.clone().without_autodiff();
        let backward = move |gradient| flex::backward(kept, gradient);
        return crate::custom_gradient(x, flex::forward, backward);
    }
    activation::gelu(x)
}
