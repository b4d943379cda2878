//! State of optimizers in files: the bits of memory, in less of it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Output;

use bonfire_testkit::{SmallDisk, again, task};
use burn::module::{Module, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::every_rule::every_rule;
use super::super::rules::*;
use super::super::{Arithmetic, Fused};
use crate::{FileMemoryError, Offload};

/// One parameter whose state belongs into files, and one whose state does not.
#[derive(Module, Debug)]
struct Model {
    large: Param<Tensor<2>>,
    small: Param<Tensor<1>>,
}

const LARGE: [usize; 2] = [257, 511];
const SMALL: usize = 9;

fn numbers<const D: usize>(seed: u64, shape: [usize; D], dtype: DType) -> Tensor<D> {
    let mut random = StdRng::seed_from_u64(seed);
    let count = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|_| random.random_range(-1.0..1.0)).collect();
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
}

impl Model {
    fn new(dtype: DType) -> Self {
        Self {
            large: Param::from_tensor(Tensor::from_inner(numbers(1, LARGE, dtype))),
            small: Param::from_tensor(Tensor::from_inner(numbers(2, [SMALL], dtype))),
        }
    }

    fn stepped(self, optimizer: &mut ModuleOptimizer, step: u64) -> Self {
        let dtype = self.large.val().dtype();
        let mut gradients = GradientsParams::new();
        gradients.register(self.large.id, numbers(3 + step, LARGE, dtype));
        gradients.register(self.small.id, numbers(3 + step, [SMALL], dtype));
        optimizer.step(0.01, self, gradients)
    }

    fn bits(&self) -> Vec<u8> {
        let (large, small) = (self.large.val().into_data(), self.small.val().into_data());
        [large.as_bytes(), small.as_bytes()].concat()
    }
}

fn offloaded<C: Arithmetic>(
    optimizer: Fused<C>,
    moments: usize,
    offload: Option<&Offload>,
) -> (ModuleOptimizer, usize) {
    (optimizer.with_offload(offload.cloned()).into(), moments)
}

/// Every optimizer with the number of its moments, and with its state in files if they have a place.
fn optimizers(offload: Option<&Offload>) -> Vec<(ModuleOptimizer, usize)> {
    every_rule!(offloaded(offload)).into()
}

/// The mappings of files that were in this folder.
fn mappings(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(folder)).count()
}

#[test]
fn the_bits_are_those_of_state_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let state = Offload::to_files(folder.path()).unwrap();
    let all = state.clone().with_parameters();
    let dtypes = [(DType::F32, 0), (DType::F64, 0), (DType::BF16, 1)];
    let cases = [(state, 0), (all, 1)].into_iter();
    for ((offload, parameters), (dtype, masters)) in
        cases.flat_map(|offload| dtypes.map(|dtype| (offload.clone(), dtype)))
    {
        let pairs = optimizers(None).into_iter().zip(optimizers(Some(&offload)));
        for ((mut plain, moments), (mut filed, _)) in pairs {
            let (mut one, mut other) = (Model::new(dtype), Model::new(dtype));
            for step in 0..5 {
                one = one.stepped(&mut plain, step);
                other = other.stepped(&mut filed, step);
                assert!(one.bits() == other.bits(), "{dtype:?}, step {step}");
            }
            // A parameter stays in its file: there is no second one, and none in memory.
            let files = moments + masters + parameters;
            assert_eq!(mappings(folder.path()), files, "{dtype:?}");
        }
    }
    assert_eq!(mappings(folder.path()), 0);
}

#[test]
fn records_continue_in_files_and_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let offload = Offload::to_files(folder.path()).unwrap().with_parameters();
    for dtype in [DType::F32, DType::BF16] {
        for index in 0..optimizers(None).len() {
            let make = |offload: Option<&Offload>| optimizers(offload).swap_remove(index).0;
            let train = |first: Option<&Offload>, then: Option<&Offload>| {
                let mut model = Model::new(dtype);
                let mut optimizer = make(first);
                for step in 0..3 {
                    model = model.stepped(&mut optimizer, step);
                }
                let bytes = optimizer.into_bytes().unwrap();
                let record = optimizer.to_record();
                // What is recorded stays what it was.
                let other = model.clone().stepped(&mut optimizer, 7);
                let mut loaded = make(then).load_record(record);
                assert!(model.clone().stepped(&mut loaded, 7).bits() == other.bits());
                let mut optimizer = make(then).from_bytes(bytes).unwrap();
                for step in 3..6 {
                    model = model.stepped(&mut optimizer, step);
                }
                model.bits()
            };
            let expected = train(None, None);
            let files = Some(&offload);
            for (first, then) in [(files, files), (files, None), (None, files)] {
                assert!(train(first, then) == expected, "{dtype:?}, {index}");
            }
        }
    }
}

#[test]
fn clones_go_ways_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let offload = Offload::to_files(folder.path()).unwrap().with_parameters();
    let run = |offload: Option<&Offload>| {
        let mut optimizer = optimizers(offload).swap_remove(0).0;
        let model = Model::new(DType::F32).stepped(&mut optimizer, 0);
        let mut clone = optimizer.clone();
        let other = model.clone().stepped(&mut clone, 1);
        let model = model.stepped(&mut optimizer, 2).stepped(&mut optimizer, 3);
        [other.stepped(&mut clone, 3).bits(), model.bits()]
    };
    assert!(run(Some(&offload)) == run(None));
}

#[test]
fn a_folder_that_takes_no_files_is_an_error() {
    let error = Offload::to_files("/proc/no such folder").unwrap_err();
    assert!(matches!(error, FileMemoryError::Folder { .. }), "{error}");
}

#[test]
fn a_full_disk_is_named_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path(), 256 << 10) else {
        println!("skipped: this user cannot mount a small file system");
        return;
    };
    let offload = Offload::to_files(folder.path()).unwrap();
    let mut optimizer = optimizers(Some(&offload)).swap_remove(0).0;
    let model = Model::new(DType::F32);
    let step = || model.stepped(&mut optimizer, 0);
    let panic = catch_unwind(AssertUnwindSafe(step)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    let bytes = LARGE.iter().product::<usize>() * 4;
    let expected = format!("no {bytes} bytes left in {}", folder.path().display());
    assert!(text.contains(&expected), "{text}");
}

/// A parameter of 32 MiB, whose moments are twice that, and half of what they need.
const ROWS: usize = 8 << 10;
const COLUMNS: usize = 1 << 10;
const LEFT_BYTES: u64 = 32 << 20;

/// Trains in a process whose private memory is limited, with files in a folder, if it has a name.
fn limited(folder: &str) -> Output {
    again("fused::tests::offload::moments_larger_than_memory_train", folder).output().unwrap()
}

#[test]
fn moments_larger_than_memory_train() {
    if let Some(folder) = task() {
        return train_in_little_memory(&folder);
    }
    let plain = limited("");
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(!plain.status.success() && said.contains("memory allocation of"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let filed = limited(folder.path().to_str().unwrap());
    let said = String::from_utf8_lossy(&filed.stderr);
    assert!(filed.status.success(), "{said}");
    let said = String::from_utf8_lossy(&filed.stdout);
    assert!(said.contains("trained"), "{said}");
}

fn train_in_little_memory(folder: &str) {
    let config = AdamWConfig::new();
    let offload = (!folder.is_empty()).then(|| Offload::to_files(folder).unwrap());
    let mut optimizer = ModuleOptimizer::from(config.build().with_offload(offload));
    // The threads and what they take.
    let _ = Model::new(DType::F32).stepped(&mut config.init(), 0);
    let device = Device::flex();
    let gradient = Tensor::<2>::ones([ROWS, COLUMNS], &device);
    let mut parameter = Param::from_tensor(Tensor::from_inner(gradient.clone().mul_scalar(2.0)));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib: u64 = data.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let limit = Rlimit {
        current: Some((kib << 10) + LEFT_BYTES),
        maximum: getrlimit(Resource::Data).maximum,
    };
    setrlimit(Resource::Data, limit).unwrap();
    for _ in 0..3 {
        let mut gradients = GradientsParams::new();
        gradients.register(parameter.id, gradient.clone());
        parameter = optimizer.step(0.1, parameter, gradients);
    }
    let last = parameter.val().slice([ROWS - 1..ROWS, COLUMNS - 1..COLUMNS]);
    assert!(last.into_scalar::<f32>() < 2.0);
    println!("trained");
}
