//! Networks begin with parameters that torchvision has saved.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bonfire::World;
use bonfire::weights::WeightsFile;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use serde_json::{Map, json};
use vision::model::{Arch, Model, ModelConfig};
use vision::networks::resnet::Depth;
use vision::weights;

/// Tensors with the names and the layout that torchvision's `state_dict` has.
#[derive(Default)]
struct Torchvision {
    path: Vec<String>,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl ModuleVisitor for Torchvision {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // The first part is the kind of network.
        let name = self.path[1..].join(".");
        let name = name.replace("gamma", "weight").replace("beta", "bias");
        let tensor = match name.as_str() {
            "fc.weight" => param.val().transpose(),
            _ => param.val(),
        };
        let shape = tensor.dims().to_vec();
        let values = tensor.into_data().iter::<f32>().collect();
        self.tensors.push((name, shape, values));
    }
}

fn network(depth: Depth, classes: usize) -> ModelConfig {
    ModelConfig {
        arch: Arch::ResNet(depth),
        classes,
        image_size: 32,
        stem: None,
        zero_init_residual: false,
    }
}

/// A safetensors file: the length of a JSON header, the header, the bytes.
fn write(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    fs::write(path, file).unwrap();
}

fn saved(folder: &Path, config: ModelConfig) -> (Model, PathBuf) {
    let model = config.init(7, &Device::flex());
    let mut tensors = Torchvision::default();
    model.visit(&mut tensors);
    let path = folder.join("network.safetensors");
    write(&path, &tensors.tensors);
    (model, path)
}

fn scores(model: &Model) -> Vec<u32> {
    let pictures = Tensor::<1, burn::tensor::Int>::arange(0..3 * 1024, &Device::flex());
    let pictures = pictures.float().div_scalar(1024).reshape([1, 3, 32, 32]);
    let scores = model.forward(pictures).into_data();
    scores.iter::<f32>().map(f32::to_bits).collect()
}

/// Loads a file into a new network on two ranks.
fn loaded(config: ModelConfig, path: &Path) -> Result<Vec<Vec<u32>>, String> {
    let load = |world: World| {
        let model = config.init(8 + u64::from(world.rank().get()), &world.device());
        weights::load(model, path, &world).map(|model| scores(&model))
    };
    let chain = |error| format!("{:#}", anyhow::Error::from(error));
    bonfire::spawn(2, load).map_err(chain)
}

#[test]
fn torchvisions_parameters_are_loaded_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for depth in [Depth::ResNet18, Depth::ResNet50] {
        let (model, path) = saved(folder.path(), network(depth, 6));
        let expected = scores(&model);
        assert_eq!(loaded(network(depth, 6), &path).unwrap(), [expected.clone(), expected]);
    }
}

#[test]
fn the_last_layer_may_be_for_other_classes_and_nothing_else_may_differ() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = saved(folder.path(), network(Depth::ResNet18, 6));
    let scores = loaded(network(Depth::ResNet18, 4), &path).unwrap();
    assert_eq!((scores[0].len(), &scores[0]), (4, &scores[1]), "rank 0's network everywhere");
    let error = loaded(network(Depth::ResNet34, 6), &path).unwrap_err();
    assert!(error.contains("this network") && error.contains("layer1.2"), "{error}");
}

/// Names a Python that has torchvision; `tests/torchvision/install` makes one.
const PYTHON: &str = "BONFIRE_TEST_TORCHVISION";

/// Little-endian floats.
fn floats(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let (floats, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The scores of two pictures by ResNet-34 with the parameters of a file, on both of two ranks.
fn scores_with(path: &Path, pictures: &[f32]) -> Vec<Vec<f32>> {
    let load = |world: World| {
        let model = network(Depth::ResNet34, 10).init(1, &world.device());
        let file = WeightsFile::new(path);
        let (_, report) = bonfire::weights::load_weights(model.clone(), file, &world)?;
        // 36 convolutions, as many normalisations of four tensors each, and a layer of two.
        assert_eq!(report.loaded.len(), 36 + 4 * 36 + 2, "{report}");
        let left = (report.skipped, report.missing, report.unexpected);
        assert_eq!(left, (vec![], vec![], vec![]));
        let model = weights::load(model, path, &world)?;
        let pictures = Tensor::<1>::from_floats(pictures, &world.device());
        let scores = model.forward(pictures.reshape([2, 3, 64, 64])).into_data();
        anyhow::Ok(scores.iter::<f32>().collect())
    };
    bonfire::spawn(2, load).unwrap()
}

#[test]
fn torchvisions_own_file_gives_torchvisions_own_scores() {
    let Some(python) = std::env::var_os(PYTHON) else {
        println!("skipped: {PYTHON} names no Python with torchvision");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = "tests/torchvision/reference.py";
    let status = Command::new(python).arg(script).arg(folder.path()).status();
    assert!(status.unwrap().success(), "torchvision's scores are not to be had");
    let pictures = floats(&folder.path().join("pictures.f32"));
    let expected = floats(&folder.path().join("scores.f32"));
    let largest = expected.iter().fold(0.0_f32, |most, score| most.max(score.abs()));
    // Both add in 32 bits in an order of their own: at most 512 x 3 x 3 products for a number, whose
    // roundings add up as a random walk does, in each of 34 layers one after the other.
    let tolerance = 34.0 * (512.0 * 9.0_f32).sqrt() * f32::EPSILON * largest;
    for name in ["resnet34.pth", "legacy.pth", "wrapped.pth"] {
        for scores in scores_with(&folder.path().join(name), &pictures) {
            assert_eq!(scores.len(), expected.len());
            let pairs = scores.iter().zip(&expected);
            let furthest =
                pairs.fold(0.0_f32, |most, (own, theirs)| most.max((own - theirs).abs()));
            println!("{name}: {furthest:e} apart at most, {tolerance:e} allowed");
            assert!(furthest <= tolerance, "{name}: {scores:?} {expected:?}");
        }
    }
}
