//! The two residual blocks of He et al. 2015 (arXiv 1512.03385), as torchvision builds them.

use bonfire::nn::{conv2d, relu};
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::AvgPool2dConfig;
use burn::tensor::Tensor;

use crate::networks::draw::{Channels, Draw, Window};
use crate::networks::norm::BatchNorm;

/// The width of a bottleneck's output, as a multiple of the inside.
pub(crate) const EXPANSION: usize = 4;

/// The block of which a network is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Two convolutions of 3 x 3.
    Basic,
    /// 1 x 1, 3 x 3, 1 x 1; the stride is in the middle, as in torchvision.
    Bottleneck,
}

/// The shortcut around a block whose input and output differ in shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortcut {
    /// A convolution of 1 x 1 and a normalisation.
    Projection,
    /// Every other pixel, and zeros for the missing channels: no parameters. For the small networks on CIFAR.
    Padding,
}

/// The place of a block in its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) source: usize,
    /// Channels of its output, but for the expansion of a bottleneck.
    pub(crate) width: usize,
    pub(crate) inside: usize,
    /// Groups of channels in the middle of a bottleneck that do not mix.
    pub(crate) groups: usize,
    pub(crate) stride: usize,
    pub(crate) shortcut: Shortcut,
    /// Starts the last normalisation with zeros.
    pub(crate) zero_init: bool,
}

/// A residual block. The fields have torchvision's names, so that its parameters are found under the
/// same paths; the third pair is a bottleneck's.
#[derive(Module, Debug)]
pub struct Block {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm>,
    downsample: Option<(Conv2d, BatchNorm)>,
    stride: usize,
}

impl Kind {
    /// Channels of a block's output, by its width.
    pub(crate) fn target(self, width: usize) -> usize {
        match self {
            Self::Basic => width,
            Self::Bottleneck => width * EXPANSION,
        }
    }
}

impl Block {
    pub(crate) fn new(kind: Kind, place: Place, draw: &mut Draw) -> Self {
        let Place { source, width, inside, stride, .. } = place;
        let target = kind.target(width);
        let channels = |source, target| Channels { source, target };
        let window = |side, stride| Window { side, stride };
        let last = |draw: &Draw| {
            if place.zero_init { draw.zero_norm(target) } else { draw.norm(target) }
        };
        let (conv1, conv2, conv3, bn2, bn3);
        match kind {
            Kind::Basic => {
                conv1 = draw.convolution(channels(source, inside), window(3, stride));
                conv2 = draw.convolution(channels(inside, target), window(3, 1));
                (conv3, bn2, bn3) = (None, last(draw), None);
            }
            Kind::Bottleneck => {
                conv1 = draw.convolution(channels(source, inside), window(1, 1));
                conv2 = draw.grouped(channels(inside, inside), window(3, stride), place.groups);
                conv3 = Some(draw.convolution(channels(inside, target), window(1, 1)));
                (bn2, bn3) = (draw.norm(inside), Some(last(draw)));
            }
        }
        let differs = source != target || stride != 1;
        Self {
            conv1,
            bn1: draw.norm(inside),
            conv2,
            bn2,
            conv3,
            bn3,
            downsample: (differs && place.shortcut == Shortcut::Projection)
                .then(|| projection(place, target, draw)),
            stride,
        }
    }

    /// Applies the block: `[batch, source, height, width]` to `[batch, target, height / stride, width / stride]`.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        // ANCHOR: basic
        let x = conv2d(&self.conv1, input.clone());
        let x = relu(self.bn1.forward(x));
        let mut x = self.bn2.forward(conv2d(&self.conv2, x));
        // ANCHOR_END: basic
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            x = bn3.forward(conv2d(conv3, relu(x)));
        }
        let [_, target, _, _] = x.dims();
        let around = match &self.downsample {
            Some((convolution, norm)) => norm.forward(conv2d(convolution, input)),
            None => padded(input, target, self.stride),
        };
        relu(x + around)
    }
}

pub(crate) fn projection(place: Place, target: usize, draw: &mut Draw) -> (Conv2d, BatchNorm) {
    let channels = Channels { source: place.source, target };
    let window = Window { side: 1, stride: place.stride };
    let convolution = draw.convolution(channels, window);
    (convolution, draw.norm(target))
}

/// The input itself, if the shapes are equal; else every `stride`-th pixel, with channels of zeros.
fn padded(input: Tensor<4>, target: usize, stride: usize) -> Tensor<4> {
    let input = match stride {
        1 => input,
        // A mean over one pixel, which autodiff knows on every backend.
        _ => AvgPool2dConfig::new([1, 1]).with_strides([stride; 2]).init().forward(input),
    };
    let [batch, source, height, width] = input.dims();
    if source == target {
        return input;
    }
    assert!(source < target, "{source} channels fit into {target}");
    let zeros = Tensor::zeros([batch, target - source, height, width], &input.device());
    Tensor::cat(vec![input, zeros], 1)
}
