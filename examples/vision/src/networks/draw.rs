//! Layers with drawn parameters: a pure function of the seed, the same on every device and rank.
//!
//! The distributions are torchvision's: convolutions after He et al. 2015 (normal, by the fan out), everything else
//! uniform within `1 / sqrt(fan in)`, which is PyTorch's default.

use std::f64::consts::TAU;

use burn::module::Param;
use burn::nn::conv::Conv2d;
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Device, Tensor, TensorData};
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::networks::norm::{BatchNorm, BatchNormConfig};

/// The window of a convolution: square, and padded so that only the stride makes a picture smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Its side in pixels, odd.
    pub(crate) side: usize,
    /// Pixels from one place to the next.
    pub(crate) stride: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) source: usize,
    pub(crate) target: usize,
}

#[derive(Debug)]
pub(crate) struct Draw<'a> {
    rng: ChaCha8Rng,
    device: &'a Device,
}

impl<'a> Draw<'a> {
    pub(crate) fn new(seed: u64, device: &'a Device) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { rng, device }
    }

    /// A convolution without bias, normal with deviation `sqrt(2 / fan out)`.
    pub(crate) fn convolution(&mut self, channels: Channels, window: Window) -> Conv2d {
        self.grouped(channels, window, 1)
    }

    /// A convolution without bias whose channels are in groups that do not mix, normal with deviation `sqrt(2 / fan
    /// out)`.
    pub(crate) fn grouped(&mut self, channels: Channels, window: Window, groups: usize) -> Conv2d {
        let Window { side, .. } = window;
        let std = (2.0 / (channels.target * side * side) as f64).sqrt();
        let shape = [channels.target, channels.source / groups, side, side];
        Conv2d { groups, ..convolution(self.normal(shape, std), window) }
    }

    /// A convolution without bias, normal with deviation `sqrt(2 / fan in)`.
    pub(crate) fn convolution_by_source(&mut self, channels: Channels, window: Window) -> Conv2d {
        let Window { side, .. } = window;
        let std = (2.0 / (channels.source * side * side) as f64).sqrt();
        let shape = [channels.target, channels.source, side, side];
        convolution(self.normal(shape, std), window)
    }

    /// A convolution of single pixels without bias, uniform within `1 / sqrt(fan in)`.
    pub(crate) fn projection(&mut self, channels: Channels) -> Conv2d {
        let bound = 1.0 / (channels.source as f64).sqrt();
        let weight = self.uniform([channels.target, channels.source, 1, 1], bound);
        let window = Window { side: 1, stride: 1 };
        convolution(weight, window)
    }

    /// A linear layer, weight and bias uniform within `1 / sqrt(fan in)`.
    pub(crate) fn linear(&mut self, channels: Channels) -> Linear {
        let Channels { source, target } = channels;
        let bound = 1.0 / (source as f64).sqrt();
        Linear {
            weight: self.uniform([source, target], bound),
            bias: Some(self.uniform([target], bound)),
        }
    }

    /// A linear layer whose bias is zero, weight uniform within `1 / sqrt(fan in)`.
    pub(crate) fn linear_without_shift(&mut self, channels: Channels) -> Linear {
        let Channels { source, target } = channels;
        let bound = 1.0 / (source as f64).sqrt();
        let zeros = TensorData::zeros::<f32, _>([target]);
        Linear {
            weight: self.uniform([source, target], bound),
            bias: Some(Param::from_data(zeros, self.device)),
        }
    }

    /// A parameter of independent normal values.
    pub(crate) fn normal<const D: usize>(
        &mut self,
        shape: [usize; D],
        std: f64,
    ) -> Param<Tensor<D>> {
        self.parameter(shape, |rng| std * standard_normal(rng))
    }

    /// A normalisation that initially changes only mean and variance.
    pub(crate) fn norm(&self, channels: usize) -> BatchNorm {
        BatchNormConfig::new(channels).init(self.device)
    }

    /// A normalisation whose output is zero until it is trained: the block that ends with it starts
    /// as the identity (Goyal et al. 2017).
    pub(crate) fn zero_norm(&self, channels: usize) -> BatchNorm {
        let mut norm = self.norm(channels);
        norm.gamma = Param::from_data(TensorData::zeros::<f32, _>([channels]), self.device);
        norm
    }

    fn uniform<const D: usize>(&mut self, shape: [usize; D], bound: f64) -> Param<Tensor<D>> {
        self.parameter(shape, |rng| bound * (2.0 * rng.random::<f64>() - 1.0))
    }

    fn parameter<const D: usize>(
        &mut self,
        shape: [usize; D],
        draw: impl Fn(&mut ChaCha8Rng) -> f64,
    ) -> Param<Tensor<D>> {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| draw(&mut self.rng) as f32).collect();
        Param::from_data(TensorData::new(values, shape), self.device)
    }
}

fn convolution(weight: Param<Tensor<4>>, window: Window) -> Conv2d {
    let Window { side, stride } = window;
    assert_eq!(side % 2, 1, "a window of {side} pixels has no middle");
    let margin = side / 2;
    Conv2d {
        weight,
        bias: None,
        stride: [stride; 2],
        kernel_size: [side; 2],
        dilation: [1; 2],
        groups: 1,
        padding: PaddingConfig2d::Explicit(margin, margin, margin, margin),
    }
}

/// One draw from the standard normal distribution (Box and Muller, 1958).
fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (TAU * rng.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f32]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let square = |&value: &f32| (f64::from(value) - mean).powi(2);
        let deviation = (values.iter().map(square).sum::<f64>() / count).sqrt();
        (mean, deviation)
    }

    fn values<const D: usize>(param: &Param<Tensor<D>>) -> Vec<f32> {
        param.val().into_data().iter::<f32>().collect()
    }

    #[test]
    fn convolutions_are_normal_by_their_fan_out() {
        let device = Device::flex();
        let channels = Channels { source: 40, target: 50 };
        let window = Window { side: 3, stride: 2 };
        let layer = Draw::new(1, &device).convolution(channels, window);
        assert_eq!(layer.weight.val().dims(), [50, 40, 3, 3]);
        let values = values(&layer.weight);
        let (mean, deviation) = moments(&values);
        let std = (2.0_f64 / (50.0 * 9.0)).sqrt();
        // Standard errors of mean and deviation of n normal values; five of them.
        let count = values.len() as f64;
        assert!(mean.abs() < 5.0 * std / count.sqrt(), "mean {mean}");
        let error = 5.0 * std / (2.0 * count).sqrt();
        assert!((deviation - std).abs() < error, "{deviation} against {std}");
    }

    #[test]
    fn linear_layers_are_uniform_by_their_fan_in() {
        let device = Device::flex();
        let channels = Channels { source: 64, target: 100 };
        let layer = Draw::new(2, &device).linear(channels);
        let values = values(&layer.weight);
        let (bound, most) = (0.125_f32, values.iter().fold(0.0_f32, |a, b| a.max(b.abs())));
        assert!(most <= bound && most > 0.99 * bound, "largest {most}");
        let (_, deviation) = moments(&values);
        let std = f64::from(bound) / 3.0_f64.sqrt();
        assert!((deviation / std - 1.0).abs() < 0.05, "{deviation} {std}");
    }

    #[test]
    fn the_seed_decides() {
        let device = Device::flex();
        let drawn = |seed| values(&Draw::new(seed, &device).normal([7], 1.0));
        assert_eq!(drawn(3), drawn(3));
        assert_ne!(drawn(3), drawn(4));
    }
}
