//! Batch normalisation of one rank's batch in the memory of tensors on Flex.

use burn::backend::Flex;
use burn::tensor::Tensor;

use crate::nn::custom_gradient::Inputs;
use crate::nn::memory::{is_here, own, row_major, tensor, values};

pub(super) struct Normalized<const D: usize> {
    pub(super) output: Tensor<D>,
    pub(super) mean: Tensor<1>,
    /// The biased variance.
    pub(super) variance: Tensor<1>,
}

/// Returns true if this module normalises a batch of this kind.
pub(super) fn has<const D: usize>(x: &Tensor<D>, gamma: &Tensor<1>, beta: &Tensor<1>) -> bool {
    is_here(x) && is_here(gamma) && is_here(beta) && x.shape().num_elements() > 0
}

pub(super) fn batch_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Normalized<D> {
    let shape = x.dims();
    let [samples, features] = [shape[0], shape[1]];
    let sizes = [samples, features, shape[2..].iter().product()];
    let mut inputs = Inputs::default();
    inputs.add(&x);
    inputs.add(&gamma);
    inputs.add(&beta);
    let [of_x, of_gamma, of_beta] = [x.is_tracked(), gamma.is_tracked(), beta.is_tracked()];
    let (x, gamma, beta) = (row_major(x), row_major(gamma), row_major(beta));
    let norm = bonfire_layers::BatchNorm::of(values(&x), sizes, epsilon);
    let output = norm.forward(values(&x), values(&gamma), values(&beta));
    let output = tensor(output, shape);
    let moments = norm.moments();
    let mean = moments.iter().map(|moments| moments.mean as f32);
    let variance = moments.iter().map(|moments| moments.variance as f32);
    Normalized {
        mean: tensor(mean.collect(), [features]),
        variance: tensor(variance.collect(), [features]),
        output: inputs.lead_to(output, move |gradient| {
            let mut gradient = own(gradient);
            let sums = norm.backward_parameters(values(&x), values(&gradient));
            let mut found = Vec::new();
            if of_x {
                let target = gradient.try_storage_mut().expect("its memory is not shared");
                norm.backward(values(&x), values(&gamma), &sums, target);
                found.push(Tensor::<D>::from_primitive::<Flex>(gradient).into_dispatch());
            }
            for (sums, is_wanted) in sums.into_iter().zip([of_gamma, of_beta]) {
                let sums = sums.into_iter().map(|sum| sum as f32).collect();
                found.extend(is_wanted.then(|| tensor(sums, [features]).into_dispatch()));
            }
            found
        }),
    }
}
