//! Beside Burn's own; `bonfire-layers` has an oracle of 64 bits.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};

use super::{conv2d, flex};

/// Between -1 and 1.
fn numbers<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let number = |i: usize| (i * 7919 % 1009) as f32 / 504.5 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Output, and gradients of input, weight and bias.
fn found(
    layer: &Conv2d,
    input: [usize; 4],
    apply: impl Fn(&Conv2d, Tensor<4>) -> Tensor<4>,
) -> Vec<TensorData> {
    let device = Device::flex().autodiff();
    let input = numbers(input, &device).require_grad();
    let output = apply(layer, input.clone());
    let slopes = numbers(output.dims(), &device);
    let gradients = (output.clone() * slopes).sum().backward();
    let mut found = vec![output.into_data(), input.grad(&gradients).unwrap().into_data()];
    found.push(layer.weight.grad(&gradients).unwrap().into_data());
    found.extend(layer.bias.as_ref().map(|bias| bias.grad(&gradients).unwrap().into_data()));
    found
}

#[test]
fn values_and_gradients_are_burns() {
    let base = Conv2dConfig::new([8, 6], [3, 4]);
    for (config, input) in [
        (base.clone(), [4, 8, 6, 7]),
        (base.clone().with_bias(false).with_stride([2, 1]), [5, 8, 6, 7]),
        (base.clone().with_padding(PaddingConfig2d::Explicit(1, 2, 1, 2)), [6, 8, 3, 3]),
        (base.clone().with_padding(PaddingConfig2d::Same), [4, 8, 5, 6]),
        (base.clone().with_padding(PaddingConfig2d::Same).with_stride([3, 2]), [4, 8, 8, 9]),
        (base.clone().with_groups(2).with_dilation([2, 1]), [4, 8, 7, 5]),
    ] {
        let device = Device::flex();
        assert!(flex::has(&config.init(&device), &numbers(input, &device)), "{config}");
        // One layer: all tests of the process draw from the same generator, so a seed makes no two alike.
        let layer = config.init(&Device::flex().autodiff());
        let own = found(&layer, input, conv2d);
        let burns = found(&layer, input, Conv2d::forward);
        assert_eq!(own.len(), burns.len());
        for (own, burns) in own.iter().zip(&burns) {
            // Sums of at most 300 terms of at most 1.
            let tolerance = Tolerance::absolute(300.0 * f32::EPSILON * 17.0);
            own.assert_approx_eq::<f32>(burns, tolerance);
        }
    }
}

/// Few samples, many groups and other types are Burn's.
#[test]
fn what_is_not_computed_here_is_burns() {
    let device = Device::flex();
    for (config, samples) in [
        (Conv2dConfig::new([8, 8], [3, 3]), 3),
        (Conv2dConfig::new([8, 8], [3, 3]).with_groups(8), 4),
    ] {
        let layer = config.init(&device);
        let input = numbers([samples, 8, 5, 5], &device);
        assert!(!flex::has(&layer, &input));
        let burns = layer.forward(input.clone()).into_data();
        conv2d(&layer, input).into_data().assert_eq(&burns, true);
    }
    let layer = Conv2dConfig::new([8, 8], [3, 3]).init(&device);
    let wide = numbers([4, 8, 5, 5], &device).cast(burn::tensor::DType::F64);
    assert!(!flex::has(&layer, &wide));
}

#[test]
fn a_view_of_other_memory_is_read_as_it_is_seen() {
    let device = Device::flex();
    let layer = Conv2dConfig::new([6, 7], [3, 3]).init(&device);
    let view = numbers([4, 6, 4, 9], &device).permute([3, 1, 0, 2]).slice(2..7);
    let copy = Tensor::<4>::from_data(view.clone().into_data(), &device);
    let found = conv2d(&layer, view).into_data();
    found.assert_eq(&conv2d(&layer, copy).into_data(), true);
}

#[test]
fn what_needs_no_gradient_gets_none() {
    let device = Device::flex().autodiff();
    let mut layer = Conv2dConfig::new([6, 7], [3, 3]).init(&device);
    layer.weight = layer.weight.set_require_grad(false);
    let input = numbers([5, 6, 4, 4], &device).require_grad();
    let gradients = conv2d(&layer, input.clone()).sum().backward();
    assert!(input.grad(&gradients).is_some());
    assert!(layer.weight.grad(&gradients).is_none());
    assert!(layer.bias.as_ref().is_some_and(|bias| bias.grad(&gradients).is_some()));
    layer.bias = None;
    let output = conv2d(&layer, numbers([5, 6, 4, 4], &device));
    assert!(!output.is_tracked());
    assert_eq!(output.device(), device);
}
