//! Files made byte by byte, so that the readers are not their own oracle.

use std::path::Path;

use bonfire_checkpoint::weights::FileError;
use bonfire_collective::CollectiveError;
use bonfire_testkit::assert_each_says;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device};
use burn_store::{ModuleStore, SafetensorsStore};

use super::*;
use crate::world::tests::on_ranks;
use crate::{DdpConfig, Placement, TrainError};

mod files;

use files::{Stored, numbered, pytorch, safetensors};

/// As a network of PyTorch with a linear layer, a normalization and a head.
#[derive(Module, Debug)]
struct Net {
    fc: Linear,
    bn: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(classes: usize, device: &Device) -> Self {
        Self {
            fc: LinearConfig::new(2, 3).init(device),
            bn: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(3, classes).init(device),
        }
    }
}

/// What PyTorch would save of such a network with ten classes; every number occurs once.
fn stored() -> Vec<Stored> {
    vec![
        numbered("fc.weight", &[3, 2], 0),
        numbered("fc.bias", &[3], 10),
        numbered("bn.weight", &[3], 20),
        numbered("bn.bias", &[3], 30),
        numbered("bn.running_mean", &[3], 40),
        numbered("bn.running_var", &[3], 50),
        numbered("bn.num_batches_tracked", &[1], 60),
        numbered("head.weight", &[10, 3], 70),
        numbered("head.bias", &[10], 100),
        numbered("aux.weight", &[1], 110),
    ]
}

fn floats<const D: usize>(tensor: burn::Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

#[track_caller]
fn assert_holds_the_body(net: &Net) {
    // Transposed: PyTorch has rows of outputs, Burn has rows of inputs.
    assert_eq!(floats(net.fc.weight.val()), [0., 2., 4., 1., 3., 5.]);
    assert_eq!(floats(net.fc.bias.as_ref().unwrap().val()), [10., 11., 12.]);
    assert_eq!(floats(net.bn.gamma.val()), [20., 21., 22.]);
    assert_eq!(floats(net.bn.beta.val()), [30., 31., 32.]);
    assert_eq!(floats(net.bn.running_mean.value_sync()), [40., 41., 42.]);
    assert_eq!(floats(net.bn.running_var.value_sync()), [50., 51., 52.]);
}

/// Loads on one rank.
fn load(net: Net, file: impl Into<WeightsFile>) -> Result<(Net, LoadReport), WeightsError> {
    let file = file.into();
    on_ranks(1, |world| load_weights(net.clone(), &file, &world)).remove(0)
}

fn five_classes() -> Net {
    Net::new(5, &Device::flex().autodiff())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn what_fits_is_loaded_and_the_rest_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["net.pth", "net.PT", "net.pth.tar", "pytorch_model.bin", "net.ckpt"];
    let pytorch = names.map(|name| write(folder.path(), name, &pytorch(&stored())));
    let safetensors = write(folder.path(), "net.safetensors", &safetensors(&stored()));
    for path in pytorch.into_iter().chain([safetensors]) {
        let before = five_classes();
        let head = floats(before.head.weight.val());
        let (net, report) = load(before, path.as_path()).unwrap();
        assert_holds_the_body(&net);
        assert_eq!(floats(net.head.weight.val()), head, "the head is as it was");
        assert!(net.fc.weight.val().is_require_grad());
        let loaded =
            ["bn.beta", "bn.gamma", "bn.running_mean", "bn.running_var", "fc.bias", "fc.weight"];
        assert_eq!(report.loaded, loaded);
        let skipped = |parameter: &str, model: &[usize], file: &[usize]| {
            bonfire_checkpoint::weights::ShapeDifference {
                parameter: parameter.to_owned(),
                model: model.to_vec(),
                file: file.to_vec(),
            }
        };
        let head = [skipped("head.bias", &[5], &[10]), skipped("head.weight", &[3, 5], &[3, 10])];
        assert_eq!(report.skipped, head);
        assert_eq!(report.unexpected, ["aux.weight"]);
        assert_eq!(report.missing, Vec::<String>::new());
        let lines = report.to_string();
        let parts = [
            "6 loaded, 2 skipped by shape, 0 missing, 1 unexpected\n",
            "head.bias (model [5], file [10])",
        ];
        assert_each_says([lines], &parts);
    }
}

#[test]
fn names_are_changed_before_they_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let wrapped: Vec<Stored> = stored()
        .into_iter()
        .map(|tensor| tensor.renamed(|name| format!("of_{}", name.replace("bn.", "norm1."))))
        .filter(|tensor| !tensor.name.contains("running_mean"))
        .collect();
    let path = write(folder.path(), "net.pth", &pytorch(&wrapped));

    let error = load(five_classes(), path.as_path()).unwrap_err().to_string();
    assert!(
        error.starts_with("none of the 9 tensors in ")
            && error.contains("of_aux.weight, of_fc.bias, of_fc.weight and others")
            && error.contains("the model has bn.beta, bn.gamma, bn.running_mean and others"),
        "{error}"
    );

    let file = WeightsFile::new(&path).without_prefix("of_").renaming(r"^norm(\d)\.", "bn.");
    let (net, report) = load(five_classes(), &file).unwrap();
    assert_eq!(floats(net.bn.gamma.val()), [20., 21., 22.]);
    assert_eq!(report.missing, ["bn.running_mean"]);
    assert_eq!(report.loaded.len(), 5);

    // A prefix is taken as it is written.
    let file = WeightsFile::new(&path).without_prefix("of.");
    assert!(load(five_classes(), &file).is_err());

    let error = load(five_classes(), WeightsFile::new(&path).renaming("(", "")).unwrap_err();
    assert!(
        matches!(&error, WeightsError::File(FileError::BadPattern { pattern, .. }) if pattern == "("),
        "{error}"
    );
}

#[test]
fn values_take_the_type_of_the_model_and_frozen_parameters_stay_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let halves: Vec<Stored> = stored().into_iter().map(Stored::into_half).collect();
    let path = write(folder.path(), "half.safetensors", &safetensors(&halves));
    let mut net = five_classes().train();
    net.fc = net.fc.no_grad();
    let (net, _) = load(net, path.as_path()).unwrap();
    assert_holds_the_body(&net);
    assert_eq!(net.fc.weight.val().dtype(), DType::F32);
    assert!(!net.fc.weight.val().is_require_grad());
    assert!(net.head.weight.val().is_require_grad());
}

#[test]
fn what_burn_has_saved_is_not_transposed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("burn.safetensors");
    let saved = five_classes();
    let mut store = SafetensorsStore::from_file(&path);
    store.collect_from(&saved).unwrap();
    let (net, report) = load(five_classes(), path.as_path()).unwrap();
    assert_eq!(floats(net.fc.weight.val()), floats(saved.fc.weight.val()));
    assert_eq!(floats(net.head.weight.val()), floats(saved.head.weight.val()));
    assert_eq!((report.loaded.len(), report.skipped.len(), report.missing.len()), (8, 0, 0));
}

#[test]
fn only_rank_0_needs_the_file_and_all_ranks_get_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "net.safetensors", &safetensors(&stored()));
    let results = on_ranks(3, |world| {
        let path = if world.is_main() { path.clone() } else { "no/such/file.safetensors".into() };
        load_weights(five_classes(), path, &world).unwrap()
    });
    for (net, report) in &results {
        assert_holds_the_body(net);
        assert_eq!(floats(net.head.weight.val()), floats(results[0].0.head.weight.val()));
        assert_eq!(report, &results[0].1);
    }
}

#[test]
fn all_ranks_get_the_error_of_rank_0_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let whole = safetensors(&stored());
    let zip = pytorch(&stored());
    let paths = [
        folder.path().join("missing.pth"),
        folder.path().join("missing.safetensors"),
        folder.path().to_path_buf(),
        write(folder.path(), "text.pt", b"no zip and no pickle"),
        write(folder.path(), "text.safetensors", b"neither is this"),
        write(folder.path(), "empty.safetensors", b""),
        write(folder.path(), "long.safetensors", &[0xFF; 64]),
        write(folder.path(), "cut.safetensors", &whole[..whole.len() - 1]),
        write(folder.path(), "cut.pth", &zip[..zip.len() / 2]),
    ];
    for path in paths {
        let errors = on_ranks(2, |world| {
            let error = load_weights(five_classes(), path.as_path(), &world).unwrap_err();
            // The group goes on: a program may try another file.
            world.group().barrier().unwrap();
            error.to_string()
        });
        assert_from_rank_0(&errors);
        let name = path.display().to_string();
        assert!(errors[0].contains(&name) && !errors[0].contains('\n'), "{:?}", errors[0]);
    }
}

/// Rank 1 says whose error it has, so that nobody takes it for its own.
#[track_caller]
fn assert_from_rank_0(errors: &[String]) {
    assert_eq!(errors[1], format!("rank 0 could not read or write: {}", errors[0]));
}

#[test]
fn unequal_models_are_found_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "net.safetensors", &safetensors(&stored()));
    let errors = on_ranks(2, |world| {
        let classes = 5 + world.rank().index();
        let net = Net::new(classes, &world.device());
        load_weights(net, path.as_path(), &world).unwrap_err()
    });
    for error in errors {
        let difference = matches!(error, WeightsError::Train(TrainError::ModelMismatch(_)));
        assert!(difference, "{error}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "net.safetensors", &safetensors(&stored()));
    let errors = on_ranks(2, |world| {
        if !world.is_main() {
            world.group().abort("no model");
            return None;
        }
        load_weights(five_classes(), path.as_path(), &world).err()
    });
    let Some(WeightsError::Train(TrainError::Collective(error))) = &errors[0] else {
        panic!("{:?}", errors[0]);
    };
    assert!(matches!(error, CollectiveError::PeerFailed { .. }), "{error}");
}

#[test]
fn a_reader_that_says_something_else_is_named() {
    let outcomes = on_ranks(2, |world| {
        let group = world.group();
        if group.rank() == READER {
            // As a program of another version might.
            broadcast_value(group, &"loaded".to_owned()).unwrap();
            return None;
        }
        broadcast_value(group, &0_u64).err()
    });
    let error = outcomes[1].as_ref().expect("that is no number");
    assert_each_says([error], &["rank 0", "the same build"]);
}

/// A network of which a part is cut into rows.
fn wide() -> Net {
    let device = Device::flex().autodiff();
    Net { fc: LinearConfig::new(40, 67).init(&device), ..Net::new(5, &device) }
}

/// All parameters and buffers.
fn everything(net: &Net) -> Vec<Vec<f32>> {
    let bias = |layer: &Linear| floats(layer.bias.as_ref().unwrap().val());
    vec![
        floats(net.bn.beta.val()),
        floats(net.bn.gamma.val()),
        floats(net.bn.running_mean.value_sync()),
        floats(net.bn.running_var.value_sync()),
        bias(&net.fc),
        floats(net.fc.weight.val()),
        bias(&net.head),
        floats(net.head.weight.val()),
    ]
}

#[test]
fn what_is_exported_from_any_placement_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, placement) in [
        (1, Placement::replicated()),
        (2, Placement::zero1()),
        (2, Placement::zero3()),
        (3, Placement::zero3()),
    ] {
        let path = folder.path().join(format!("{ranks} {placement}.safetensors"));
        let parts = path.with_extension("parts.safetensors");
        let pytorch = path.with_extension("pytorch.safetensors");
        let saved = on_ranks(ranks, |world| {
            let config = DdpConfig::default().with_placement(placement);
            let mut ddp = Ddp::with_config(wide(), &world, config.clone()).unwrap();
            save_weights(&mut ddp, path.as_path()).unwrap();
            let in_parts = Export::new(&parts).with_file_bytes_max(4000);
            save_weights(&mut ddp, in_parts).unwrap();
            save_weights(&mut ddp, Export::new(&pytorch).for_pytorch()).unwrap();
            let mut other = Ddp::with_config(wide(), &world, config).unwrap();
            let report = load_weights_into(&mut other, pytorch.as_path()).unwrap();
            assert_eq!(report.loaded.len(), 8, "{report}");
            let saved = everything(&ddp.whole().unwrap());
            assert!(everything(&other.whole().unwrap()) == saved);
            saved
        });
        // The weight alone has more bytes.
        assert!(!parts.exists());
        for file in [path, parts.with_added_extension("index.json"), pytorch] {
            let (loaded, report) = load(wide(), file.as_path()).unwrap();
            assert_eq!(report.loaded.len(), 8, "{report}");
            assert!(everything(&loaded) == saved[0], "{}", file.display());
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 4 * 5, "{left:?}");
}

#[test]
fn what_does_not_fit_a_sharded_training_is_listed_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "net.pth", &pytorch(&stored()));
    let outcomes = on_ranks(2, |world| {
        let config = DdpConfig::default().with_placement(Placement::zero3());
        let mut ddp = Ddp::with_config(wide(), &world, config).unwrap();
        let missing = load_weights_into(&mut ddp, folder.path().join("missing.pth"));
        let report = load_weights_into(&mut ddp, path.as_path()).unwrap();
        let skipped: Vec<_> = report.skipped.into_iter().map(|skipped| skipped.parameter).collect();
        assert_eq!(skipped, ["fc.bias", "fc.weight", "head.bias", "head.weight"]);
        assert_eq!(floats(ddp.whole().unwrap().bn.beta.val()), [30., 31., 32.]);
        missing.unwrap_err().to_string()
    });
    assert_from_rank_0(&outcomes);
    assert!(outcomes[0].contains("missing.pth"), "{}", outcomes[0]);
}

#[test]
fn the_reader_of_safetensors_reads_what_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let start = write(folder.path(), "start.pth", &pytorch(&stored()));
    on_ranks(2, |world| {
        let config = DdpConfig::default().with_placement(Placement::zero3());
        let mut ddp = Ddp::with_config(five_classes(), &world, config).unwrap();
        load_weights_into(&mut ddp, start.as_path()).unwrap();
        save_weights(&mut ddp, Export::new(&path).for_pytorch()).unwrap();
    });
    let Some(read) = bonfire_testkit::read_by_safetensors(&path) else {
        return;
    };
    let names: Vec<&str> = read.iter().filter_map(|line| line.split(';').next()).collect();
    let bn = "bn.bias bn.running_mean bn.running_var bn.weight";
    assert_eq!(names.join(" "), format!("{bn} fc.bias fc.weight head.bias head.weight"));
    // As PyTorch has it: the numbers from 0 to 5.
    let weight = "fc.weight;[3, 2];0x0.0p+0;0x1.0000000000000p+0;0x1.0000000000000p+1;\
                  0x1.8000000000000p+1;0x1.0000000000000p+2;0x1.4000000000000p+2";
    assert_eq!(read[5], weight);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let errors = on_ranks(2, |world| {
        let mut ddp = Ddp::new(five_classes(), &world).unwrap();
        let missing = folder.path().join("missing/net.safetensors");
        save_weights(&mut ddp, missing).unwrap_err().to_string()
    });
    assert_from_rank_0(&errors);
    assert!(errors[0].contains("cannot write weights to"), "{}", errors[0]);
}
