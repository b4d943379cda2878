//! A model with more parameters than memory trains where they are in files. Each training is a program of its own,
//! this one started again, under a limit of private memory.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::{Command, Output};

use bonfire_collective::GroupOptions;
use bonfire_optim::{AdamWConfig, Offload};
use bonfire_testkit::local;
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor, activation};

/// Of a frozen layer's weight, 4 MiB. All of them are 64 MiB.
const WIDTH: usize = 1024;
const FROZEN: usize = 16;

/// Private memory for a model, a gradient and what is in the making.
const LEFT_KIB: usize = 40 << 10;

/// Set where this program is a child: the layers that are frozen, and the folder for files, if there is one.
const TASK: &str = "PARAMETERS_IN_FILES_TASK";

const TEST: &str = "a_model_larger_than_memory_trains";

/// A large model that is frozen, which Burn initialises when it is first used, and a layer that is trained.
#[derive(Module, Debug)]
struct Tuned {
    frozen: Vec<Linear>,
    trained: Linear,
}

impl Tuned {
    fn new(layers: usize, device: &Device) -> Self {
        let layer = |_| {
            let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
            config.init(device).no_grad()
        };
        Self {
            frozen: (0..layers).map(layer).collect(),
            trained: LinearConfig::new(WIDTH, WIDTH).init(device),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::relu(layer.forward(x));
        let x = self.frozen.iter().fold(x, forward);
        self.trained.forward(x).powi_scalar(2).mean()
    }
}

fn train(world: &World, layers: usize, offload: Option<Offload>) {
    let device = world.device().autodiff();
    let model = Tuned::new(layers, &device);
    let config = DdpConfig::default();
    let mut ddp = Ddp::with_config(model, world, config.with_offload(offload.clone())).unwrap();
    let adamw = AdamWConfig::new().build().with_offload(offload);
    let mut optimizer = ModuleOptimizer::from(adamw);
    let mut losses = Vec::new();
    for _ in 0..3 {
        let x = Tensor::ones([2, WIDTH], &device);
        let step = ddp.backward(|model| model.loss(x)).unwrap();
        losses.push(step.loss.value().unwrap());
        ddp.step(&mut optimizer, 1e-4, step.gradients).unwrap();
    }
    assert!(losses[2] < losses[0], "{losses:?}");
}

/// This program as a child, with its private memory limited, or not.
fn child(layers: usize, folder: &str, limit_kib: Option<usize>) -> Output {
    let limit = limit_kib.map_or("unlimited".to_owned(), |kib| kib.to_string());
    Command::new("sh")
        .args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &limit])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(TASK, format!("{layers} {folder}"))
        .output()
        .unwrap()
}

fn trained(task: &str) {
    let (layers, folder) = task.split_once(' ').unwrap();
    let layers = layers.parse().unwrap();
    let files = || Offload::to_files(folder).unwrap().with_parameters();
    let offload = (!folder.is_empty()).then(files);
    local(1, GroupOptions::default(), |group| {
        let local = LocalRank { local_rank: 0, local_world_size: 1 };
        let world = World::new(group, local, DeviceKind::Cpu).unwrap();
        train(&world, layers, offload.clone());
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib = data.unwrap().trim().strip_suffix(" kB").unwrap();
    println!("\ndata {kib}");
}

#[test]
fn a_model_larger_than_memory_trains() {
    if let Ok(task) = std::env::var(TASK) {
        return trained(&task);
    }
    // What the program takes without the model.
    let without = child(0, "", None);
    assert!(without.status.success(), "{without:?}");
    let printed = String::from_utf8(without.stdout).unwrap();
    let data = printed.lines().find_map(|line| line.split("data ").nth(1));
    let data: usize = data.unwrap().parse().unwrap();
    let limit = Some(data + LEFT_KIB);
    let plain = child(FROZEN, "", limit);
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(!plain.status.success() && said.contains("memory allocation of"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let filed = child(FROZEN, folder.path().to_str().unwrap(), limit);
    assert!(filed.status.success(), "{filed:?}");
}
