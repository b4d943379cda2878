//! The common structure of all networks: a stem, four stages of blocks, the mean over all pixels and a linear layer.
//! They differ in the blocks of the last stage, and in its stride.
//!
//! The fields have torchvision's names, so that its parameters are found under the same paths.

use bonfire::nn::{conv2d, relu};
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use crate::networks::block::{Block, Kind, Place, Shortcut};
use crate::networks::draw::{Channels, Draw, Window};
use crate::networks::norm::BatchNorm;

/// A block of the last stage.
pub trait LastBlock: Module {
    /// Applies the block: `[batch, channels, height, width]` to as many pixels, or half as many on a side.
    fn forward(&self, input: Tensor<4>) -> Tensor<4>;
}

/// The first layers of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// 7 x 7 with stride 2, then a maximum over 3 x 3 with stride 2: for pictures of 224 pixels.
    Large,
    /// 3 x 3 with stride 1: for pictures of 32 pixels.
    Small,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrunkConfig {
    pub(crate) sizes: Sizes,
    pub(crate) stem: Stem,
    pub(crate) classes: usize,
    /// The stride of the first block of the last stage.
    pub(crate) last_stride: usize,
    /// Starts the last normalisation of every block with zeros.
    pub(crate) zero_init: bool,
}

/// The sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) kind: Kind,
    pub(crate) blocks: [usize; 4],
    /// Channels of the stem, and the width of the blocks of the first stage; doubled in each stage after it.
    pub(crate) width: usize,
    /// Channels inside the blocks of the first stage; doubled in each stage after it.
    pub(crate) inside: usize,
    /// Groups of channels in the middle of a bottleneck.
    pub(crate) groups: usize,
    pub(crate) shortcut: Shortcut,
}

/// A network for pictures `[batch, 3, height, width]`.
#[derive(Module, Debug)]
pub struct Trunk<B: Module> {
    pub(crate) conv1: Conv2d,
    pub(crate) bn1: BatchNorm,
    pub(crate) maxpool: Option<MaxPool2d>,
    pub(crate) layer1: Vec<Block>,
    pub(crate) layer2: Vec<Block>,
    pub(crate) layer3: Vec<Block>,
    /// Empty in the networks for CIFAR, which have three stages.
    pub(crate) layer4: Vec<B>,
    fc: Linear,
}

impl LastBlock for Block {
    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        Self::forward(self, input)
    }
}

impl<B: LastBlock> Trunk<B> {
    /// Draws all parameters in the order of the layers. `last` makes a block of the last stage.
    pub(crate) fn new(
        config: TrunkConfig,
        seed: u64,
        device: &Device,
        last: impl Fn(Place, &mut Draw) -> B,
    ) -> Self {
        let Sizes { kind, blocks, width, inside, groups, shortcut } = config.sizes;
        let strides = [1, 2, 2, config.last_stride];
        let draw = &mut Draw::new(seed, device);
        let (conv1, bn1) = stem(config.stem, width, draw);
        let mut source = width;
        let mut place = |stage: usize, index: usize| {
            let width = width << stage;
            let place = Place {
                source,
                width,
                inside: inside << stage,
                groups,
                stride: if index == 0 { strides[stage] } else { 1 },
                shortcut,
                zero_init: config.zero_init,
            };
            source = kind.target(width);
            place
        };
        let [layer1, layer2, layer3] = [0, 1, 2].map(|stage| {
            let block = |index| Block::new(kind, place(stage, index), draw);
            (0..blocks[stage]).map(block).collect()
        });
        let layer4 = (0..blocks[3]).map(|index| last(place(3, index), draw)).collect();
        Self {
            conv1,
            bn1,
            maxpool: max_pool(config.stem),
            layer1,
            layer2,
            layer3,
            layer4,
            fc: draw.linear(Channels { source, target: config.classes }),
        }
    }

    /// Returns the scores of all classes: `[batch, 3, height, width]` to `[batch, classes]`.
    ///
    /// # Panics
    /// If the network has learnt positions for pictures of another size.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = self.begin(pictures);
        for layer in [&self.layer1, &self.layer2, &self.layer3] {
            x = layer.iter().fold(x, |x, block| block.forward(x));
        }
        let x = self.layer4.iter().fold(x, |x, block| block.forward(x));
        self.fc.forward(pooled(x))
    }

    /// Computes the input of the first stage from pictures.
    pub(crate) fn begin(&self, pictures: Tensor<4>) -> Tensor<4> {
        let x = relu(self.bn1.forward(conv2d(&self.conv1, pictures)));
        match &self.maxpool {
            Some(pool) => pool.forward(x),
            None => x,
        }
    }
}

fn stem(stem: Stem, width: usize, draw: &mut Draw) -> (Conv2d, BatchNorm) {
    let channels = Channels { source: 3, target: width };
    let convolution = draw.convolution(channels, window_of(stem));
    (convolution, draw.norm(width))
}

pub(crate) fn window_of(stem: Stem) -> Window {
    let (side, stride) = match stem {
        Stem::Large => (7, 2),
        Stem::Small => (3, 1),
    };
    Window { side, stride }
}

pub(crate) fn max_pool(stem: Stem) -> Option<MaxPool2d> {
    (stem == Stem::Large).then(|| {
        MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init()
    })
}

/// The mean over all pixels: `[batch, channels, height, width]` to `[batch, channels]`.
pub(crate) fn pooled(x: Tensor<4>) -> Tensor<2> {
    let [batch, channels, height, width] = x.dims();
    x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels])
}
