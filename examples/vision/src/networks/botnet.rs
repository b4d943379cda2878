//! BoTNet-50 (Srinivas et al. 2021, arXiv 2101.11605): ResNet-50 whose last stage has attention to all pixels in place
//! of 3 x 3 convolutions.
//!
//! The last stage keeps the size of the feature map, as the paper's BoTNet-S1 and Distribuuuu's
//! `botnet50` do, and like the latter's shortcut the projection ends with a rectifier.

use bonfire::nn::{conv2d, relu};
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor};

use crate::networks::attention::{Attention, AttentionSizes};
use crate::networks::block::{EXPANSION, Place, projection};
use crate::networks::draw::{Channels, Draw, Window};
use crate::networks::norm::BatchNorm;
use crate::networks::resnet::Depth;
use crate::networks::trunk::{LastBlock, Stem, Trunk, TrunkConfig};

/// Attention heads in each block.
const HEADS: usize = 4;

/// Options of a [`BotNet`]: classes, picture size and stem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BotNetConfig {
    /// The number of classes to predict.
    pub classes: usize,
    /// Height and width of the pictures in pixels: the relative positions are learnt for one size.
    pub image_size: usize,
    /// The first layers of the network.
    pub stem: Stem,
    /// Starts the last normalisation of the residual blocks with zeros. That of the attention blocks always does.
    pub zero_init_residual: bool,
}

/// A bottleneck transformer for pictures `[batch, 3, image_size, image_size]`.
pub type BotNet = Trunk<BotBlock>;

/// A bottleneck with attention in the middle.
#[derive(Module, Debug)]
pub struct BotBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    attention: Attention,
    bn2: BatchNorm,
    conv3: Conv2d,
    bn3: BatchNorm,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl BotNetConfig {
    /// Pixels on a side of the last feature map.
    fn map(&self) -> usize {
        // Each of these halves, rounding up.
        let halvings = match self.stem {
            Stem::Large => 4,
            Stem::Small => 2,
        };
        (0..halvings).fold(self.image_size, |side, _| side.div_ceil(2))
    }

    /// Builds the network; the same seed gives the same parameters on every device and every rank.
    pub fn init(&self, seed: u64, device: &Device) -> BotNet {
        let config = TrunkConfig {
            sizes: Depth::ResNet50.sizes(),
            stem: self.stem,
            classes: self.classes,
            last_stride: 1,
            zero_init: self.zero_init_residual,
        };
        let map = self.map();
        Trunk::new(config, seed, device, |place, draw| BotBlock::new(place, map, draw))
    }
}

impl BotBlock {
    fn new(place: Place, map: usize, draw: &mut Draw) -> Self {
        let Place { source, width, .. } = place;
        let target = width * EXPANSION;
        let channels = |source, target| Channels { source, target };
        let window = Window { side: 1, stride: 1 };
        Self {
            conv1: draw.convolution(channels(source, width), window),
            bn1: draw.norm(width),
            attention: Attention::new(
                AttentionSizes { channels: width, heads: HEADS, map: [map; 2] },
                draw,
            ),
            bn2: draw.norm(width),
            conv3: draw.convolution(channels(width, target), window),
            bn3: draw.zero_norm(target),
            downsample: (source != target).then(|| projection(place, target, draw)),
        }
    }
}

impl LastBlock for BotBlock {
    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = relu(self.bn1.forward(conv2d(&self.conv1, input.clone())));
        let x = relu(self.bn2.forward(self.attention.forward(x)));
        let x = self.bn3.forward(conv2d(&self.conv3, x));
        let around = match &self.downsample {
            Some((convolution, norm)) => relu(norm.forward(conv2d(convolution, input))),
            None => input,
        };
        relu(x + around)
    }
}
