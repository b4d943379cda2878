//! A model with more parameters than memory trains where they are in files. Each training is a program of its own,
//! this one started again, under a limit of private memory.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::{Command, Output};

use bonfire_collective::GroupOptions;
use bonfire_optim::{AdamWConfig, Offload};
use bonfire_testkit::{again, local, measured, print_figure, task};
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor, activation};

/// Of a frozen layer's weight, 4 MiB. All of them are 64 MiB.
const WIDTH: usize = 1024;
const FROZEN: usize = 16;

/// Private memory for a model, a gradient and what is in the making.
const LEFT_KIB: u64 = 40 << 10;

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

/// This program as a child with frozen layers, and its private memory limited.
fn limited(folder: &str, limit_kib: u64) -> Output {
    let child = again(TEST, &format!("{FROZEN} {folder}"));
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &limit_kib.to_string()]);
    limited.arg(child.get_program()).args(child.get_args());
    limited.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.output().unwrap()
}

/// The task: the layers that are frozen, and the folder for files, if there is one.
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
    print_figure(kib.parse().unwrap());
}

#[test]
fn a_model_larger_than_memory_trains() {
    if let Some(task) = task() {
        return trained(&task);
    }
    // What the program takes without the model.
    let limit = measured(TEST, "0 ") + LEFT_KIB;
    let plain = limited("", limit);
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(!plain.status.success() && said.contains("memory allocation of"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let filed = limited(folder.path().to_str().unwrap(), limit);
    assert!(filed.status.success(), "{filed:?}");
}
