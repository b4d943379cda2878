//! DenseNet-121 (Huang et al. 2016, arXiv 1608.06993) as torchvision builds it: the same layers, the same names, the
//! same initial distributions.
//!
//! This file does not depend on ranks.

use bonfire::nn::{conv2d, relu};
use burn::module::{
    Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig, MaxPool2d};
use burn::tensor::{Device, Tensor};

use crate::networks::draw::{Channels, Draw, Window};
use crate::networks::norm::BatchNorm;
use crate::networks::trunk::{Stem, max_pool, pooled, window_of};

/// Channels that each layer adds.
const GROWTH: usize = 32;

/// Channels inside a layer, in multiples of those that it adds.
const INSIDE: usize = 4;

const STEM: usize = 64;

const LAYERS: [usize; 4] = [6, 12, 24, 16];

/// Options of a [`DenseNet`]: classes and stem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseNetConfig {
    /// The number of classes to predict.
    pub classes: usize,
    /// The first layers of the network.
    pub stem: Stem,
}

/// A densely connected network for pictures `[batch, 3, height, width]`. The fields have torchvision's names, so that
/// its parameters are found under the same paths.
#[derive(Module, Debug)]
pub struct DenseNet {
    features: Features,
    classifier: Linear,
}

#[derive(Module, Debug)]
struct Features {
    conv0: Conv2d,
    norm0: BatchNorm,
    pool0: Option<MaxPool2d>,
    denseblock1: DenseBlock,
    transition1: Transition,
    denseblock2: DenseBlock,
    transition2: Transition,
    denseblock3: DenseBlock,
    transition3: Transition,
    denseblock4: DenseBlock,
    norm5: BatchNorm,
}

/// A layer that takes the output of all earlier ones, and appends to it.
#[derive(Module, Debug)]
struct DenseLayer {
    norm1: BatchNorm,
    conv1: Conv2d,
    norm2: BatchNorm,
    conv2: Conv2d,
}

/// Halves the channels, and the pixels on a side.
#[derive(Module, Debug)]
struct Transition {
    norm: BatchNorm,
    conv: Conv2d,
    pool: AvgPool2d,
}

/// Densely connected layers, with torchvision's names, which count from 1. They are a vector, since a network of
/// fields for 58 layers is too large to move through an unoptimised program's stack.
#[derive(Clone, Debug)]
struct DenseBlock(Vec<DenseLayer>);

impl DenseBlock {
    /// Makes `layers` layers, and updates `channels` from those of the input to those of the output.
    fn new(layers: usize, channels: &mut usize, draw: &mut Draw) -> Self {
        let layer = |_| {
            let layer = DenseLayer::new(*channels, draw);
            *channels += GROWTH;
            layer
        };
        Self((0..layers).map(layer).collect())
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.0.iter().fold(input, |x, layer| layer.forward(x))
    }

    fn each(self, change: impl FnMut(DenseLayer) -> DenseLayer) -> Self {
        Self(self.0.into_iter().map(change).collect())
    }
}

fn layer_name(index: usize) -> String {
    format!("denselayer{}", index + 1)
}

impl Module for DenseBlock {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (index, layer) in self.0.iter().enumerate() {
            let name = layer_name(index);
            visitor.enter_module(&name, "DenseBlock");
            layer.visit(visitor);
            visitor.exit_module(&name, "DenseBlock");
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let mut index = 0;
        self.each(|layer| {
            let name = layer_name(index);
            index += 1;
            mapper.enter_module(&name, "DenseBlock");
            let layer = layer.map(mapper);
            mapper.exit_module(&name, "DenseBlock");
            layer
        })
    }

    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        let layers = self.0.iter();
        layers.fold(devices, |devices, layer| layer.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|layer| layer.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|layer| layer.to_device(device))
    }

    fn train(self) -> Self {
        self.each(Module::train)
    }

    fn valid(&self) -> Self {
        Self(self.0.iter().map(Module::valid).collect())
    }

    fn materialize(self) -> Self {
        self.each(Module::materialize)
    }
}

impl ModuleDisplay for DenseBlock {}

impl ModuleDisplayDefault for DenseBlock {
    fn content(&self, content: Content) -> Option<Content> {
        let layers = self.0.iter().enumerate();
        let add = |content: Content, (index, layer)| content.add(&layer_name(index), layer);
        layers.fold(content, add).optional()
    }
}

impl DenseNetConfig {
    /// Builds the network; the same seed gives the same parameters on every device and every rank.
    pub fn init(&self, seed: u64, device: &Device) -> DenseNet {
        let draw = &mut Draw::new(seed, device);
        let first = Channels { source: 3, target: STEM };
        let mut channels = STEM;
        let features = Features {
            conv0: draw.convolution_by_source(first, window_of(self.stem)),
            norm0: draw.norm(STEM),
            pool0: max_pool(self.stem),
            denseblock1: DenseBlock::new(LAYERS[0], &mut channels, draw),
            transition1: Transition::new(&mut channels, draw),
            denseblock2: DenseBlock::new(LAYERS[1], &mut channels, draw),
            transition2: Transition::new(&mut channels, draw),
            denseblock3: DenseBlock::new(LAYERS[2], &mut channels, draw),
            transition3: Transition::new(&mut channels, draw),
            denseblock4: DenseBlock::new(LAYERS[3], &mut channels, draw),
            norm5: draw.norm(channels),
        };
        let last = Channels { source: channels, target: self.classes };
        DenseNet { features, classifier: draw.linear_without_shift(last) }
    }
}

impl DenseNet {
    /// Returns the scores of all classes: `[batch, 3, height, width]` to `[batch, classes]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let x = self.features.forward(pictures);
        self.classifier.forward(pooled(relu(x)))
    }
}

impl Features {
    fn forward(&self, pictures: Tensor<4>) -> Tensor<4> {
        let x = relu(self.norm0.forward(conv2d(&self.conv0, pictures)));
        let x = match &self.pool0 {
            Some(pool) => pool.forward(x),
            None => x,
        };
        let x = self.transition1.forward(self.denseblock1.forward(x));
        let x = self.transition2.forward(self.denseblock2.forward(x));
        let x = self.transition3.forward(self.denseblock3.forward(x));
        self.norm5.forward(self.denseblock4.forward(x))
    }
}

impl DenseLayer {
    fn new(source: usize, draw: &mut Draw) -> Self {
        let inside = INSIDE * GROWTH;
        let channels = |source, target| Channels { source, target };
        let window = |side| Window { side, stride: 1 };
        Self {
            norm1: draw.norm(source),
            conv1: draw.convolution_by_source(channels(source, inside), window(1)),
            norm2: draw.norm(inside),
            conv2: draw.convolution_by_source(channels(inside, GROWTH), window(3)),
        }
    }

    /// Appends its own channels to the input.
    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = relu(self.norm1.forward(input.clone()));
        let x = relu(self.norm2.forward(conv2d(&self.conv1, x)));
        Tensor::cat(vec![input, conv2d(&self.conv2, x)], 1)
    }
}

impl Transition {
    fn new(channels: &mut usize, draw: &mut Draw) -> Self {
        let halved = Channels { source: *channels, target: *channels / 2 };
        *channels = halved.target;
        let window = Window { side: 1, stride: 1 };
        Self {
            norm: draw.norm(halved.source),
            conv: draw.convolution_by_source(halved, window),
            pool: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let x = relu(self.norm.forward(input));
        self.pool.forward(conv2d(&self.conv, x))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use burn::module::Param;

    use super::*;
    use crate::networks::trained_numbers;

    const CONFIG: DenseNetConfig = DenseNetConfig { classes: 1000, stem: Stem::Large };

    /// The shapes of all tensors by path.
    #[derive(Default)]
    struct Paths {
        path: Vec<String>,
        shapes: BTreeMap<String, Vec<usize>>,
    }

    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shape = param.val().dims().to_vec();
            self.shapes.insert(self.path.join("."), shape);
        }
    }

    /// What torchvision documents for `densenet121`.
    #[test]
    fn the_parameter_count_is_torchvisions() {
        let device = Device::flex().autodiff();
        assert_eq!(trained_numbers(&CONFIG.init(1, &device)), 7_978_856);
    }

    /// As torchvision's `state_dict` has them, but for `weight` and `bias` of normalisations and for the transposed
    /// matrix of the classifier: 121 layers, of which 120 are convolutions, and 121 normalisations.
    #[test]
    fn paths_and_shapes_are_torchvisions() {
        let mut paths = Paths::default();
        CONFIG.init(1, &Device::flex()).visit(&mut paths);
        for (name, shape) in [
            ("features.conv0.weight", &[64, 3, 7, 7][..]),
            ("features.norm0.gamma", &[64]),
            ("features.denseblock1.denselayer1.norm1.running_var", &[64]),
            ("features.denseblock1.denselayer1.conv1.weight", &[128, 64, 1, 1]),
            ("features.denseblock1.denselayer6.conv2.weight", &[32, 128, 3, 3]),
            ("features.transition1.norm.beta", &[256]),
            ("features.transition1.conv.weight", &[128, 256, 1, 1]),
            ("features.denseblock3.denselayer24.conv1.weight", &[128, 992, 1, 1]),
            ("features.denseblock4.denselayer16.norm1.gamma", &[992]),
            ("features.norm5.gamma", &[1024]),
            ("classifier.weight", &[1024, 1000]),
            ("classifier.bias", &[1000]),
        ] {
            assert_eq!(paths.shapes.get(name).map(Vec::as_slice), Some(shape), "{name}");
        }
        assert_eq!(paths.shapes.len(), 120 + 4 * 121 + 2);
    }

    #[test]
    fn it_scores_every_picture() {
        let device = Device::flex();
        let config = DenseNetConfig { classes: 7, stem: Stem::Small };
        let pictures = Draw::new(7, &device).normal([2, 3, 32, 32], 1.0).val();
        assert_eq!(config.init(1, &device).forward(pictures).dims(), [2, 7]);
    }
}
