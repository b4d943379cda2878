//! Convolutions on the CPU as products over all samples of a batch.

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

/// Applies Burn's layer to an input of shape `[batch, channels, height, width]`, as [`Conv2d::forward`] does.
///
/// On the CPU (Flex) the batch is multiplied at once, pixel by pixel of the output, where Burn multiplies image by
/// image. That is several times as fast where feature maps are small, and taps of the kernel that lie in the padding
/// are free. Sums are those of 32 bits in another order than Burn's; bits do not depend on the number of threads, but
/// on whether the processor has fused multiplication and addition. Other devices, other types than f32, batches of
/// fewer than four, and groups of fewer than four channels get Burn's own.
///
/// ```
/// # use bonfire_train::conv2d;
/// # use burn::nn::conv::Conv2dConfig;
/// # use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let layer = Conv2dConfig::new([3, 8], [3, 3]).init(&device);
/// let output = conv2d(&layer, Tensor::zeros([5, 3, 9, 9], &device));
/// assert_eq!(output.dims(), [5, 8, 7, 7]);
/// ```
///
/// # Panics
/// If the input has another number of channels than the layer, or is smaller than its kernel.
#[must_use]
pub fn conv2d(layer: &Conv2d, input: Tensor<4>) -> Tensor<4> {
    #[cfg(feature = "flex")]
    if flex::has(layer, &input) {
        return flex::conv2d(layer, input);
    }
    layer.forward(input)
}

#[cfg(feature = "flex")]
mod flex {
    use bonfire_layers::{Convolution, Wanted, Window};
    use burn::nn::PaddingConfig2d;
    use burn::nn::conv::Conv2d;
    use burn::tensor::Tensor;

    use crate::nn::custom_gradient::Inputs;
    use crate::nn::memory::{is_here, row_major, tensor, values};

    /// Samples below which a product has too few rows, and channels of a group.
    const FEWEST: usize = 4;

    pub(super) fn has(layer: &Conv2d, input: &Tensor<4>) -> bool {
        let [samples, channels, height, width] = input.dims();
        let is_narrow = layer.groups > 1 && channels < FEWEST * layer.groups;
        samples >= FEWEST
            && height * width > 0
            && !is_narrow
            && is_here(input)
            && is_here(&layer.weight.val())
            && layer.bias.as_ref().is_none_or(|bias| is_here(&bias.val()))
    }

    pub(super) fn conv2d(layer: &Conv2d, input: Tensor<4>) -> Tensor<4> {
        let weight = layer.weight.val();
        let bias = layer.bias.as_ref().map(|bias| bias.val());
        let (input_shape, weight_shape) = (input.dims(), weight.dims());
        let window = Window {
            stride: layer.stride,
            dilation: layer.dilation,
            padding: padding(layer, [input_shape[2], input_shape[3]]),
            groups: layer.groups,
        };
        let mut inputs = Inputs::default();
        inputs.add(&input);
        inputs.add(&weight);
        if let Some(bias) = &bias {
            inputs.add(bias);
        }
        let wanted = Wanted {
            input: input.is_tracked(),
            weight: weight.is_tracked(),
            bias: bias.as_ref().is_some_and(Tensor::is_tracked),
        };
        let convolution = Convolution::new(input_shape, weight_shape, window);
        let (input, weight, bias) = (row_major(input), row_major(weight), bias.map(row_major));
        let bias = bias.as_ref().map(values);
        let output = convolution.forward(values(&input), values(&weight), bias);
        let output = tensor(output, convolution.output());
        inputs.lead_to(output, move |gradient| {
            let gradient = row_major(gradient);
            let (input, weight) = (values(&input), values(&weight));
            let found = convolution.backward(input, weight, values(&gradient), wanted);
            let input = found.input.map(|input| tensor(input, input_shape));
            let weight = found.weight.map(|weight| tensor(weight, weight_shape));
            let bias = found.bias.map(|bias| {
                let shape = [bias.len()];
                tensor(bias, shape).into_dispatch()
            });
            let input_and_weight = [input, weight].into_iter().flatten();
            let found = input_and_weight.map(Tensor::into_dispatch);
            found.chain(bias).collect()
        })
    }

    /// Before and behind an image of this height and width, as Burn pads.
    fn padding(layer: &Conv2d, size: [usize; 2]) -> [(usize, usize); 2] {
        match layer.padding {
            PaddingConfig2d::Valid => [(0, 0); 2],
            PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
            PaddingConfig2d::Same => [0, 1].map(|dim| {
                let (stride, kernel) = (layer.stride[dim], layer.kernel_size[dim]);
                let steps = size[dim].div_ceil(stride) - 1;
                let all = (steps * stride + kernel).saturating_sub(size[dim]);
                (all / 2, all - all / 2)
            }),
        }
    }
}
