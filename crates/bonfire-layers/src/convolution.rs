//! Convolutions in two dimensions as products over all samples of a batch.
//!
//! Tensors are `[samples, channels, height, width]`, weights `[target channels, source channels of a group, height,
//! width]`, in row-major order, as PyTorch and Burn have them.

mod fold;
mod geometry;
mod panels;
mod product;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use fold::Fold;
use geometry::{Geometry, Links};
use panels::{Channels, Columns, gathered, packed, scatter, unpack};
use product::{Side, linked_sums, outer_sums};

/// The path of a kernel over an image; each field in the order height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Pixels from one place to the next.
    pub stride: [usize; 2],
    /// Pixels from one tap of the kernel to the next.
    pub dilation: [usize; 2],
    /// Zeros before and behind the image.
    pub padding: [(usize, usize); 2],
    /// Number of groups of channels that do not mix.
    pub groups: usize,
}

/// A convolution of inputs and weights of one shape.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// The folding of inputs and weights, if it pays.
    fold: Option<Fold>,
    geometry: Geometry,
    taps: Vec<usize>,
    /// Links from output pixels to input pixels, and back.
    forward: Links,
    backward: Links,
}

/// Selects the gradients to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gradient of the input.
    pub input: bool,
    /// The gradient of the weight.
    pub weight: bool,
    /// The gradient of the bias.
    pub bias: bool,
}

/// The gradients that were [requested](Wanted).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// The gradient of the input.
    pub input: Option<Vec<f32>>,
    /// The gradient of the weight.
    pub weight: Option<Vec<f32>>,
    /// The gradient of the bias.
    pub bias: Option<Vec<f32>>,
}

impl Convolution {
    /// Prepares a convolution of an input and a weight of these shapes.
    ///
    /// # Panics
    /// If the channels do not fit, or the kernel reaches further than the padded image.
    pub fn new(input: [usize; 4], weight: [usize; 4], window: Window) -> Self {
        let geometry = Geometry::new(input, weight, window);
        let folded = Fold::of(input, weight, window, geometry.target[1]);
        let (fold, geometry) = match folded {
            Some((fold, input, weight, window)) => {
                (Some(fold), Geometry::new(input, weight, window))
            }
            None => (None, geometry),
        };
        let (taps, forward, backward) = geometry.links();
        Self { fold, geometry, taps, forward, backward }
    }

    /// Returns the shape of the output: samples, channels, height, width.
    pub fn output(&self) -> [usize; 4] {
        let Geometry { samples, target_channels, groups, target: [height, width], .. } =
            self.geometry;
        [samples, target_channels * groups, height, width]
    }

    /// Computes the output in row-major order.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn forward(&self, input: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let geometry = &self.geometry;
        let (input, weight) = &self.folded(input, weight);
        let [samples, targets, height, width] = self.output();
        assert!(
            bias.is_none_or(|bias| bias.len() == targets),
            "a bias for each of {targets} channels"
        );
        let mut output = vec![0.0; samples * targets * height * width];
        for group in 0..geometry.groups {
            let source = Channels::source(geometry, group);
            let target = Channels::target(geometry, group);
            let input = gathered(input, samples, source);
            let weights = self.of_group(weight, group);
            let weights = packed(weights, geometry, &self.taps, Columns::Target);
            let rows = linked_sums(
                Side::new(&input, source),
                &weights,
                samples,
                &self.forward,
                self.taps.len(),
                target,
            );
            scatter(&rows, bias, &mut output, samples, target);
        }
        output
    }

    /// Computes the gradients of input, weight and bias from that of the output.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn backward(
        &self,
        input: &[f32],
        weight: &[f32],
        gradient: &[f32],
        wanted: Wanted,
    ) -> Gradients {
        let geometry = &self.geometry;
        let (input, weight) = &self.folded(input, weight);
        let [samples, targets, height, width] = self.output();
        assert_eq!(gradient.len(), samples * targets * height * width, "values of a gradient");
        let mut gradients = Gradients {
            input: wanted.input.then(|| vec![0.0; input.len()]),
            weight: wanted.weight.then(|| vec![0.0; weight.len()]),
            bias: wanted.bias.then(|| channel_sums(gradient, targets, height * width)),
        };
        for group in 0..geometry.groups {
            let source = Channels::source(geometry, group);
            let target = Channels::target(geometry, group);
            let rows = gathered(gradient, samples, target);
            let from = Side::new(&rows, target);
            if let Some(gradient) = &mut gradients.input {
                let weights = self.of_group(weight, group);
                let weights = packed(weights, geometry, &self.taps, Columns::Source);
                let taps = self.taps.len();
                let rows = linked_sums(from, &weights, samples, &self.backward, taps, source);
                scatter(&rows, None, gradient, samples, source);
            }
            if let Some(gradient) = &mut gradients.weight {
                let rows = gathered(input, samples, source);
                let source = Side::new(&rows, source);
                let sums = outer_sums(source, from, samples, &self.forward, self.taps.len());
                let len = gradient.len() / geometry.groups;
                let gradient = &mut gradient[group * len..][..len];
                unpack(&sums, geometry, &self.taps, gradient);
            }
        }
        if let Some(fold) = &self.fold {
            gradients.input = gradients.input.map(|folded| fold.input_gradient(&folded));
            gradients.weight = gradients.weight.map(|folded| fold.weight_gradient(&folded));
        }
        gradients
    }

    fn folded<'a>(&self, input: &'a [f32], weight: &'a [f32]) -> (Cow<'a, [f32]>, Cow<'a, [f32]>) {
        let (input, weight): (Cow<'a, [f32]>, Cow<'a, [f32]>) = match &self.fold {
            Some(fold) => (fold.input(input).into(), fold.weight(weight).into()),
            None => (input.into(), weight.into()),
        };
        self.check(&input, &weight);
        (input, weight)
    }

    fn of_group<'a>(&self, weight: &'a [f32], group: usize) -> &'a [f32] {
        let len = weight.len() / self.geometry.groups;
        &weight[group * len..][..len]
    }

    fn check(&self, input: &[f32], weight: &[f32]) {
        let geometry = &self.geometry;
        let channels = geometry.source_channels * geometry.groups;
        let elems = geometry.samples * channels * geometry.source_pixels();
        assert_eq!(input.len(), elems, "values of an input");
        let elems = channels * geometry.target_channels * geometry.kernel_taps();
        assert_eq!(weight.len(), elems, "values of a weight");
    }
}

fn channel_sums(values: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; channels];
    for sample in values.chunks_exact(channels * pixels) {
        for (sum, line) in sums.iter_mut().zip(sample.chunks_exact(pixels)) {
            *sum += f64::from(line.iter().sum::<f32>());
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
