//! Residual networks (He et al. 2015, arXiv 1512.03385) as torchvision builds them: the same layers,
//! the same names, the same initial distributions. So parameters of torchvision's models are found
//! under the paths that they have there, `layer1.0.conv1.weight` and so on.
//!
//! This file does not depend on ranks.

use burn::tensor::Device;

use crate::networks::block::{Block, Kind, Shortcut};
pub use crate::networks::trunk::Stem;
use crate::networks::trunk::{Sizes, Trunk, TrunkConfig};

/// The residual network, by its number of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// 18 layers of basic blocks, for ImageNet.
    ResNet18,
    /// 34 layers of basic blocks, for ImageNet.
    ResNet34,
    /// 50 layers of bottlenecks, for ImageNet.
    ResNet50,
    /// 101 layers of bottlenecks, for ImageNet.
    ResNet101,
    /// 152 layers of bottlenecks, for ImageNet.
    ResNet152,
    /// ResNet-50 with 32 groups of 4 channels in its first bottlenecks (Xie et al. 2016, arXiv 1611.05431).
    ResNext50,
    /// ResNet-50 with twice the channels inside (Zagoruyko and Komodakis 2016, arXiv 1605.07146).
    WideResNet50,
    /// 8 layers, for CIFAR: section 4.2 of the paper with n = 1.
    ResNet8,
    /// 20 layers, for CIFAR: section 4.2 of the paper with n = 3.
    ResNet20,
}

/// Options of a [`ResNet`]: depth, classes and stem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResNetConfig {
    /// The depth of the network.
    pub depth: Depth,
    /// The number of classes to predict.
    pub classes: usize,
    /// The first layers of the network.
    pub stem: Stem,
    /// Starts the last normalisation of every block with zeros, so that every block starts as the identity (Goyal et
    /// al. 2017); torchvision's `zero_init_residual`.
    pub zero_init_residual: bool,
}

/// A residual network for pictures `[batch, 3, height, width]`.
pub type ResNet = Trunk<Block>;

impl Depth {
    pub(crate) fn sizes(self) -> Sizes {
        let large = |kind, blocks| Sizes {
            kind,
            blocks,
            width: 64,
            inside: 64,
            groups: 1,
            shortcut: Shortcut::Projection,
        };
        let wide = |groups| Sizes { inside: 128, groups, ..large(Kind::Bottleneck, [3, 4, 6, 3]) };
        let small = |n| Sizes {
            kind: Kind::Basic,
            blocks: [n, n, n, 0],
            width: 16,
            inside: 16,
            groups: 1,
            shortcut: Shortcut::Padding,
        };
        match self {
            Self::ResNet18 => large(Kind::Basic, [2, 2, 2, 2]),
            Self::ResNet34 => large(Kind::Basic, [3, 4, 6, 3]),
            Self::ResNet50 => large(Kind::Bottleneck, [3, 4, 6, 3]),
            Self::ResNet101 => large(Kind::Bottleneck, [3, 4, 23, 3]),
            Self::ResNet152 => large(Kind::Bottleneck, [3, 8, 36, 3]),
            Self::ResNext50 => wide(32),
            Self::WideResNet50 => wide(1),
            Self::ResNet8 => small(1),
            Self::ResNet20 => small(3),
        }
    }

    /// Returns the stem for which the network was designed.
    pub fn stem(self) -> Stem {
        match self {
            Self::ResNet8 | Self::ResNet20 => Stem::Small,
            _ => Stem::Large,
        }
    }
}

impl ResNetConfig {
    /// Makes a network with its usual stem, all normalisations starting with ones.
    pub fn new(depth: Depth, classes: usize) -> Self {
        Self { depth, classes, stem: depth.stem(), zero_init_residual: false }
    }

    /// Builds the network; the same seed gives the same parameters on every device and every rank.
    pub fn init(&self, seed: u64, device: &Device) -> ResNet {
        let sizes = self.depth.sizes();
        let config = TrunkConfig {
            sizes,
            stem: self.stem,
            classes: self.classes,
            last_stride: 2,
            zero_init: self.zero_init_residual,
        };
        Trunk::new(config, seed, device, |place, draw| Block::new(sizes.kind, place, draw))
    }
}

#[cfg(test)]
mod tests;
