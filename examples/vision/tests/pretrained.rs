//! Networks begin with parameters that torchvision has saved.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::fs;
use std::path::{Path, PathBuf};

use bonfire::World;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use serde_json::{Map, json};
use vision::model::{Arch, Model, ModelConfig};
use vision::resnet::Depth;
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
        assert_eq!(
            loaded(network(depth, 6), &path).unwrap(),
            [expected.clone(), expected]
        );
    }
}

#[test]
fn the_last_layer_may_be_for_other_classes_and_nothing_else_may_differ() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = saved(folder.path(), network(Depth::ResNet18, 6));
    let scores = loaded(network(Depth::ResNet18, 4), &path).unwrap();
    assert_eq!(
        (scores[0].len(), &scores[0]),
        (4, &scores[1]),
        "rank 0's network everywhere"
    );
    let error = loaded(network(Depth::ResNet34, 6), &path).unwrap_err();
    assert!(
        error.contains("this network") && error.contains("layer1.2"),
        "{error}"
    );
}
