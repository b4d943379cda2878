use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, activation};

use super::*;
use crate::networks::botnet::BotNetConfig;
use crate::networks::draw::Draw;
use crate::networks::trained_numbers;

fn config(depth: Depth, classes: usize) -> ResNetConfig {
    ResNetConfig::new(depth, classes)
}

fn count(depth: Depth, classes: usize) -> usize {
    let device = Device::flex().autodiff();
    trained_numbers(&config(depth, classes).init(1, &device))
}

/// What torchvision documents for its models.
#[test]
fn parameter_counts_are_torchvisions() {
    assert_eq!(count(Depth::ResNet18, 1000), 11_689_512);
    assert_eq!(count(Depth::ResNet34, 1000), 21_797_672);
    assert_eq!(count(Depth::ResNet50, 1000), 25_557_032);
    assert_eq!(count(Depth::ResNet101, 1000), 44_549_160);
    assert_eq!(count(Depth::ResNet152, 1000), 60_192_808);
    assert_eq!(count(Depth::ResNext50, 1000), 25_028_904);
    assert_eq!(count(Depth::WideResNet50, 1000), 68_883_240);
}

/// Table 6 of the paper has 0.27 M for n = 3. Counted by hand for n = 1: 3 x 3 convolutions
/// 3-16, 2 x 16-16, 16-32, 32-32, 32-64, 64-64; two numbers for each normalised channel; the last
/// layer.
#[test]
fn parameter_counts_for_cifar_are_the_papers() {
    assert_eq!(count(Depth::ResNet20, 10), 269_722);
    let convolutions = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64);
    let norms = 2 * (3 * 16 + 2 * 32 + 2 * 64);
    assert_eq!(count(Depth::ResNet8, 10), convolutions + norms + 650);
}

/// ResNet-50 without its three convolutions of 3 x 3 x 512 x 512, with three of 512 x 1536 and the
/// positions of maps of 14 x 14: the 20.86 M of Distribuuuu's `botnet50`; the paper rounds to 20.8.
#[test]
fn the_parameter_count_of_botnet_is_distribuuuus() {
    let device = Device::flex().autodiff();
    let config = BotNetConfig {
        classes: 1000,
        image_size: 224,
        stem: Stem::Large,
        zero_init_residual: false,
    };
    let attention = 512 * 1536 + 2 * 27 * 128;
    let expected = 25_557_032 - 3 * 9 * 512 * 512 + 3 * attention;
    assert_eq!(expected, 20_859_176);
    assert_eq!(trained_numbers(&config.init(1, &device)), expected);
}

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

/// As torchvision's `state_dict` has them but for gamma and beta, which it calls weight and bias, and
/// for the transposed matrix of `fc`.
#[test]
fn paths_and_shapes_are_torchvisions() {
    let device = Device::flex();
    let mut paths = Paths::default();
    config(Depth::ResNet18, 1000).init(1, &device).visit(&mut paths);
    let own: Vec<_> = paths.shapes.into_iter().collect();

    let mut expected: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut pair = |convolution: String, norm: String, shape: [usize; 4]| {
        expected.insert(format!("{convolution}.weight"), shape.to_vec());
        for name in ["gamma", "beta", "running_mean", "running_var"] {
            expected.insert(format!("{norm}.{name}"), vec![shape[0]]);
        }
    };
    pair("conv1".into(), "bn1".into(), [64, 3, 7, 7]);
    for (stage, width) in [(1, 64), (2, 128), (3, 256), (4, 512)] {
        let source = if stage == 1 { 64 } else { width / 2 };
        for (block, source) in [(0, source), (1, width)] {
            let path = format!("layer{stage}.{block}");
            let name = |layer: &str| format!("{path}.{layer}");
            pair(name("conv1"), name("bn1"), [width, source, 3, 3]);
            pair(name("conv2"), name("bn2"), [width, width, 3, 3]);
            if source != width {
                let around = (name("downsample.0"), name("downsample.1"));
                pair(around.0, around.1, [width, source, 1, 1]);
            }
        }
    }
    expected.insert("fc.weight".into(), vec![512, 1000]);
    expected.insert("fc.bias".into(), vec![1000]);
    assert_eq!(own, expected.into_iter().collect::<Vec<_>>());
}

/// As torchvision's `resnext50_32x4d` and `wide_resnet50_2` have them.
#[test]
fn wide_bottlenecks_have_torchvisions_shapes() {
    let device = Device::flex();
    for (depth, source) in [(Depth::ResNext50, 4), (Depth::WideResNet50, 128)] {
        let mut paths = Paths::default();
        config(depth, 10).init(1, &device).visit(&mut paths);
        for (name, shape) in [
            ("layer1.0.conv1.weight", [128, 64, 1, 1]),
            ("layer1.0.conv2.weight", [128, source, 3, 3]),
            ("layer1.0.conv3.weight", [256, 128, 1, 1]),
            ("layer4.2.conv2.weight", [1024, 8 * source, 3, 3]),
        ] {
            assert_eq!(paths.shapes[name], shape, "{depth:?} {name}");
        }
    }
}

fn pictures(batch: usize, side: usize, device: &Device) -> Tensor<4> {
    Draw::new(7, device).normal([batch, 3, side, side], 1.0).val()
}

/// Pixels on a side after every stage.
fn sides(network: &ResNet, side: usize, device: &Device) -> Vec<usize> {
    let mut x = network.begin(pictures(1, side, device));
    let mut sides = vec![x.dims()[3]];
    for layer in [&network.layer1, &network.layer2, &network.layer3, &network.layer4] {
        x = layer.iter().fold(x, |x, block| block.forward(x));
        sides.push(x.dims()[3]);
    }
    sides
}

#[test]
fn feature_maps_shrink_as_in_the_paper() {
    let device = Device::flex();
    let large = config(Depth::ResNet50, 5).init(1, &device);
    assert_eq!(sides(&large, 64, &device), [16, 16, 8, 4, 2]);
    let small = config(Depth::ResNet20, 5).init(1, &device);
    assert_eq!(sides(&small, 32, &device), [32, 32, 16, 8, 8]);
    let stem = ResNetConfig { stem: Stem::Small, ..config(Depth::ResNet18, 5) };
    assert_eq!(sides(&stem.init(1, &device), 32, &device), [32, 32, 16, 8, 4]);
}

#[test]
fn every_network_scores_every_picture() {
    let device = Device::flex();
    for depth in
        [Depth::ResNet18, Depth::ResNet34, Depth::ResNet50, Depth::ResNext50, Depth::ResNet8]
    {
        let network = config(depth, 7).init(1, &device);
        let scores = network.forward(pictures(2, 32, &device));
        assert_eq!(scores.dims(), [2, 7], "{depth:?}");
    }
    let botnet =
        BotNetConfig { classes: 7, image_size: 40, stem: Stem::Large, zero_init_residual: true };
    let scores = botnet.init(1, &device).forward(pictures(2, 40, &device));
    assert_eq!(scores.dims(), [2, 7]);
}

/// With zeros in every block's last normalisation all that is left are stem, shortcuts and the last
/// layer: the blocks' own convolutions do not matter.
#[test]
fn zero_initialised_blocks_start_as_the_identity() {
    let device = Device::flex();
    let network = |zero_init_residual| {
        let config = ResNetConfig { zero_init_residual, ..config(Depth::ResNet20, 4) };
        config.init(3, &device)
    };
    let input = Draw::new(9, &device).normal([2, 16, 6, 6], 1.0).val();
    let positive = activation::relu(input);
    let [zeros, ones] = [true, false].map(|zero| {
        let output = network(zero).layer1[0].forward(positive.clone());
        (output - positive.clone()).abs().max().into_scalar::<f32>()
    });
    assert_eq!(zeros, 0.0);
    assert!(ones > 0.1, "{ones}");
}

/// The shortcut without parameters takes every other pixel and adds channels of zeros, as the one
/// with zeros in its block shows.
#[test]
fn the_padded_shortcut_keeps_every_other_pixel() {
    let device = Device::flex();
    let config = ResNetConfig { zero_init_residual: true, ..config(Depth::ResNet8, 4) };
    let network = config.init(3, &device);
    let input = activation::relu(Draw::new(9, &device).normal([1, 16, 4, 4], 1.0).val());
    let output = network.layer2[0].forward(input.clone());
    let values = |tensor: Tensor<4>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
    let (input, output) = (values(input), values(output));
    for (index, value) in output.into_iter().enumerate() {
        let (channel, y, x) = (index / 4, index / 2 % 2, index % 2);
        let expected = if channel < 16 { input[channel * 16 + 2 * y * 4 + 2 * x] } else { 0.0 };
        assert_eq!(value, expected, "channel {channel}, pixel {y}, {x}");
    }
}
