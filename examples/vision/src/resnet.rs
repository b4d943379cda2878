//! Residual networks (He et al. 2015, arXiv 1512.03385) as torchvision builds them: the same layers,
//! the same names, the same initial distributions. So parameters of torchvision's models are found
//! under the paths that they have there, `layer1.0.conv1.weight` and so on.
//!
//! Nothing in this file knows that there is more than one rank.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Device, Tensor, activation};

use crate::block::{Block, Kind, Place, Shortcut};
use crate::draw::{Channels, Draw, Window};
use crate::norm::BatchNorm;

/// Which residual network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// 18 layers, for ImageNet.
    ResNet18,
    /// 34 layers, for ImageNet.
    ResNet34,
    /// 50 layers of bottlenecks, for ImageNet.
    ResNet50,
    /// 8 layers, for CIFAR: section 4.2 of the paper with n = 1.
    ResNet8,
    /// 20 layers, for CIFAR: section 4.2 of the paper with n = 3.
    ResNet20,
}

/// How a network begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// 7 x 7 with stride 2, then a maximum over 3 x 3 with stride 2: for pictures of 224 pixels.
    Large,
    /// 3 x 3 with stride 1: for pictures of 32 pixels.
    Small,
}

/// What a [`ResNet`] is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResNetConfig {
    /// The network.
    pub depth: Depth,
    /// Classes to tell apart.
    pub classes: usize,
    /// How it begins.
    pub stem: Stem,
    /// Whether the last normalisation of every block starts with zeros, so that every block starts as
    /// the identity (Goyal et al. 2017); torchvision's `zero_init_residual`.
    pub zero_init_residual: bool,
}

/// A residual network for pictures `[batch, 3, height, width]`.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    /// Empty in the networks for CIFAR, which have three stages.
    layer4: Vec<Block>,
    fc: Linear,
}

/// What the depth decides.
pub(crate) struct Sizes {
    pub(crate) kind: Kind,
    /// Blocks in each stage.
    pub(crate) blocks: [usize; 4],
    /// Channels of the stem, and inside the blocks of the first stage; doubled in each stage after it.
    pub(crate) width: usize,
    pub(crate) shortcut: Shortcut,
}

impl Depth {
    pub(crate) fn sizes(self) -> Sizes {
        let large = |kind, blocks| Sizes {
            kind,
            blocks,
            width: 64,
            shortcut: Shortcut::Projection,
        };
        let small = |n| Sizes {
            kind: Kind::Basic,
            blocks: [n, n, n, 0],
            width: 16,
            shortcut: Shortcut::Padding,
        };
        match self {
            Self::ResNet18 => large(Kind::Basic, [2, 2, 2, 2]),
            Self::ResNet34 => large(Kind::Basic, [3, 4, 6, 3]),
            Self::ResNet50 => large(Kind::Bottleneck, [3, 4, 6, 3]),
            Self::ResNet8 => small(1),
            Self::ResNet20 => small(3),
        }
    }

    /// The beginning that the network was made with.
    pub fn stem(self) -> Stem {
        match self {
            Self::ResNet18 | Self::ResNet34 | Self::ResNet50 => Stem::Large,
            Self::ResNet8 | Self::ResNet20 => Stem::Small,
        }
    }
}

impl ResNetConfig {
    /// A network with the beginning that it was made with, all normalisations starting with ones.
    pub fn new(depth: Depth, classes: usize) -> Self {
        Self {
            depth,
            classes,
            stem: depth.stem(),
            zero_init_residual: false,
        }
    }

    /// Builds the network; the same seed gives the same parameters on every device and every rank.
    pub fn init(&self, seed: u64, device: &Device) -> ResNet {
        let Sizes {
            kind,
            blocks,
            width,
            shortcut,
        } = self.depth.sizes();
        let draw = &mut Draw::new(seed, device);
        let (conv1, bn1) = stem(self.stem, width, draw);
        let mut source = width;
        let layers = [0, 1, 2, 3].map(|stage| {
            let inside = width << stage;
            layer(blocks[stage], draw, |index, draw| {
                let place = Place {
                    source,
                    width: inside,
                    stride: if index == 0 && stage > 0 { 2 } else { 1 },
                    shortcut,
                    zero_init: self.zero_init_residual,
                };
                source = kind.target(inside);
                Block::new(kind, place, draw)
            })
        });
        let [layer1, layer2, layer3, layer4] = layers;
        ResNet {
            conv1,
            bn1,
            maxpool: max_pool(self.stem),
            layer1,
            layer2,
            layer3,
            layer4,
            fc: draw.linear(Channels {
                source,
                target: self.classes,
            }),
        }
    }
}

impl ResNet {
    /// The scores of all classes: `[batch, 3, height, width]` to `[batch, classes]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = begin(&self.conv1, &self.bn1, self.maxpool.as_ref(), pictures);
        for layer in [&self.layer1, &self.layer2, &self.layer3, &self.layer4] {
            x = through(layer, x);
        }
        self.fc.forward(pooled(x))
    }
}

/// The first convolution and its normalisation.
pub(crate) fn stem(stem: Stem, width: usize, draw: &mut Draw) -> (Conv2d, BatchNorm) {
    let (side, stride) = match stem {
        Stem::Large => (7, 2),
        Stem::Small => (3, 1),
    };
    let channels = Channels {
        source: 3,
        target: width,
    };
    let convolution = draw.convolution(channels, Window { side, stride });
    (convolution, draw.norm(width))
}

pub(crate) fn max_pool(stem: Stem) -> Option<MaxPool2d> {
    (stem == Stem::Large).then(|| {
        MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init()
    })
}

/// The blocks of a stage.
pub(crate) fn layer<B>(
    count: usize,
    draw: &mut Draw,
    mut block: impl FnMut(usize, &mut Draw) -> B,
) -> Vec<B> {
    (0..count).map(|index| block(index, draw)).collect()
}

/// From pictures to what the first stage reads.
pub(crate) fn begin(
    conv1: &Conv2d,
    bn1: &BatchNorm,
    maxpool: Option<&MaxPool2d>,
    pictures: Tensor<4>,
) -> Tensor<4> {
    let x = activation::relu(bn1.forward(conv1.forward(pictures)));
    match maxpool {
        Some(pool) => pool.forward(x),
        None => x,
    }
}

pub(crate) fn through(blocks: &[Block], x: Tensor<4>) -> Tensor<4> {
    blocks.iter().fold(x, |x, block| block.forward(x))
}

/// The mean over all pixels: `[batch, channels, height, width]` to `[batch, channels]`.
pub(crate) fn pooled(x: Tensor<4>) -> Tensor<2> {
    let [batch, channels, height, width] = x.dims();
    x.reshape([batch, channels, height * width])
        .mean_dim(2)
        .reshape([batch, channels])
}

#[cfg(test)]
mod tests;
