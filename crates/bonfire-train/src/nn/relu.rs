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
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn bits_and_derivatives_are_those_of_burn() {
        let device = Device::flex().autodiff();
        let values = [
            -1.5,
            -0.0,
            0.0,
            1e-40,
            2.5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let found = |of: fn(Tensor<1>) -> Tensor<1>| {
            let x = Tensor::<1>::from_data(values, &device).require_grad();
            let y = of(x.clone());
            let slopes = Tensor::<1>::from_data([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &device);
            let gradients = (y.clone() * slopes).sum().backward();
            [y.into_data(), x.grad(&gradients).unwrap().into_data()]
        };
        let bits = |data: &TensorData| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
        let (own, burns) = (found(relu), found(activation::relu));
        for (own, burns) in own.iter().zip(&burns) {
            assert_eq!(bits(own), bits(burns));
        }
    }
}
