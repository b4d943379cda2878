//! Files as people have them: with any ending, wrapped, in parts, with more in them than a model needs.

#![cfg(feature = "weights")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bonfire_checkpoint::weights::{Export, FileError, LoadReport, WeightsFile};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use common::{logged, safetensors};
use serde_json::json;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    head: Linear,
}

impl Net {
    fn new(layers: usize) -> Self {
        let layer = |outputs| LinearConfig::new(2, outputs).with_bias(false).init(&Device::flex());
        Self { layers: (0..layers).map(|_| layer(2)).collect(), head: layer(1) }
    }

    /// The first weight of each layer.
    fn firsts(&self) -> Vec<f32> {
        let layers = self.layers.iter().chain([&self.head]);
        let first = |layer: &Linear| layer.weight.val().into_data().try_to_vec::<f32>().unwrap()[0];
        layers.map(first).collect()
    }
}

/// A tensor whose values are all the same.
fn filled(name: &str, shape: &[usize], value: f32) -> (String, &'static str, Vec<usize>, Vec<u8>) {
    let count: usize = shape.iter().product();
    (name.to_owned(), "F32", shape.to_vec(), value.to_le_bytes().repeat(count))
}

fn write(path: PathBuf, bytes: &[u8]) -> PathBuf {
    fs::write(&path, bytes).unwrap();
    path
}

fn load(layers: usize, file: impl Into<WeightsFile>) -> (Net, Result<LoadReport, FileError>) {
    file.into().load(Net::new(layers))
}

/// A model of two layers in a file of each, and their index.
fn in_two_files(folder: &Path) -> PathBuf {
    let first = [filled("layers.0.weight", &[2, 2], 1.0), filled("head.weight", &[1, 2], 9.0)];
    write(folder.join("first"), &safetensors(&first));
    // As after a layer without parameters, in a Sequential of PyTorch.
    write(folder.join("second"), &safetensors(&[filled("layers.2.weight", &[2, 2], 2.0)]));
    let index = json!({ "weight_map": {
        "layers.0.weight": "first", "head.weight": "first", "layers.2.weight": "second",
    }});
    write(folder.join("index.json"), index.to_string().as_bytes())
}

#[test]
fn layers_of_a_second_file_do_not_take_the_numbers_of_those_in_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = WeightsFile::new(in_two_files(folder.path())).with_contiguous_indices();
    let (net, report) = load(2, file);
    assert_eq!(report.unwrap().loaded.len(), 3);
    assert_eq!(net.firsts(), [1.0, 2.0, 9.0]);
}

#[test]
fn two_tensors_that_a_renaming_makes_equal_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = WeightsFile::new(in_two_files(folder.path())).renaming(r"layers\.\d", "layers.0");
    let error = load(2, file).1.unwrap_err();
    assert!(
        matches!(&error, FileError::SameName { name, .. } if name == "layers.0.weight"),
        "{error}"
    );
}

#[test]
fn a_missing_file_of_several_is_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let index = in_two_files(folder.path());
    fs::remove_file(folder.path().join("second")).unwrap();
    let error = load(2, index).1.unwrap_err().to_string();
    assert!(error.contains("/second (No such file"), "{error}");
}

#[test]
fn a_tensor_that_the_index_has_and_no_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let index = in_two_files(folder.path());
    write(folder.path().join("second"), &safetensors(&[filled("other", &[1], 2.0)]));
    let (lines, (net, report)) = logged(|| load(2, index.as_path()));
    assert_eq!(report.unwrap().unexpected, ["other"]);
    assert_eq!(net.firsts()[2], 9.0);
    assert!(lines.contains("layers.2.weight in second, which does not have it"), "{lines}");
}

#[test]
fn the_content_says_what_a_file_is_and_not_its_ending() {
    let folder = tempfile::tempdir().unwrap();
    let whole = safetensors(&[filled("head.weight", &[1, 2], 3.0)]);
    for name in ["net.pth", "pytorch_model.bin", "net", "net.json"] {
        let (net, report) = load(0, write(folder.path().join(name), &whole));
        report.unwrap();
        assert_eq!(net.firsts(), [3.0]);
    }
    let text = |text: &str| {
        let path = write(folder.path().join("net.safetensors"), text.as_bytes());
        load(0, path).1.unwrap_err().to_string()
    };
    assert!(text("version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    assert!(text("<!doctype html>").contains("a web page"));
}

#[test]
fn what_a_wrapper_has_put_before_all_names_is_taken_off() {
    let folder = tempfile::tempdir().unwrap();
    for prefix in ["module.", "state_dict.module."] {
        let tensors = [
            filled(&format!("{prefix}head.weight"), &[1, 2], 3.0),
            filled("optimizer.step", &[1], 1.0),
        ];
        let path = write(folder.path().join("wrapped"), &safetensors(&tensors));
        let (lines, (net, report)) = logged(|| load(0, path));
        assert_eq!(report.unwrap().unexpected, ["optimizer.step"]);
        assert_eq!(net.firsts(), [3.0]);
        assert!(lines.contains(prefix), "{lines}");
    }
}

#[test]
fn a_tensor_of_a_type_that_burn_lacks_is_named_and_the_rest_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let scale = ("scale".to_owned(), "F8_E4M3", vec![4], vec![0; 4]);
    let tensors = [filled("head.weight", &[1, 2], 3.0), scale];
    let path = write(folder.path().join("net"), &safetensors(&tensors));
    let (lines, (net, report)) = logged(|| load(0, path));
    let report = report.unwrap();
    assert_eq!((net.firsts(), report.loaded.len()), (vec![3.0], 1));
    assert_eq!(report.unreadable, ["scale (F8_E4M3)"]);
    assert!(report.to_string().contains("of a type that Burn lacks: scale (F8_E4M3)"));
    assert!(lines.contains("scale in"), "{lines}");
}

#[test]
fn values_that_are_no_numbers_are_loaded_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let tensors =
        [filled("head.weight", &[1, 2], f32::NAN), filled("layers.0.weight", &[2, 2], 1.0)];
    let path = write(folder.path().join("net"), &safetensors(&tensors));
    let (lines, (net, report)) = logged(|| load(1, path));
    report.unwrap();
    assert!(net.firsts()[1].is_nan());
    assert!(lines.contains("head.weight in") && lines.contains("has 2 values"), "{lines}");
    assert!(!lines.contains("layers.0.weight"), "{lines}");
}

#[test]
fn a_cut_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let whole = safetensors(&[filled("head.weight", &[1, 2], 3.0)]);
    for len in [4, 8, 20, whole.len() - 1] {
        let path = write(folder.path().join("net"), &whole[..len]);
        load(0, path).1.unwrap_err();
    }
    let more = [&whole[..], b"more"].concat();
    load(0, write(folder.path().join("net"), &more)).1.unwrap_err();
}

#[test]
fn an_exported_file_has_the_mode_of_any_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("net"), folder.path().join("other"));
    Export::new(&path).write(Vec::new()).unwrap();
    fs::File::create(&other).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&other));
}

#[test]
fn two_exports_have_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net");
    let exports: [fn(&Path) -> Export; 2] =
        [|path| Export::new(path), |path| Export::new(path).for_pytorch()];
    for export in exports {
        let bytes = || {
            export(&path).write(Vec::new()).unwrap();
            fs::read(&path).unwrap()
        };
        let first = bytes();
        assert!((0..20).all(|_| bytes() == first));
    }
}
