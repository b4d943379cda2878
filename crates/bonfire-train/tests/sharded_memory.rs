//! How much memory a sharded training takes: the most that a program ever had, which it asks the system for in the
//! end. So the measurement is a program of its own, this one started again, with its ranks as threads.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_collective::GroupOptions;
use bonfire_optim::AdamWConfig;
use bonfire_testkit::local;
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, Placement, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor, activation};

const RANKS: u32 = 8;
const LAYERS: usize = 24;

/// Set where this program is the one that is measured, to the width of its layers.
const TASK: &str = "SHARDED_MEMORY_WIDTH";

/// A chain of square layers: a plain model whose parameters Burn initialises when they are first used.
#[derive(Module, Debug)]
struct Chain {
    layers: Vec<Linear>,
}

impl Chain {
    fn new(width: usize, device: &Device) -> Self {
        let layer = |_| {
            let config = LinearConfig::new(width, width).with_bias(false);
            config.init(device)
        };
        Self {
            layers: (0..LAYERS).map(layer).collect(),
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::relu(layer.forward(x));
        self.layers.iter().fold(x, forward).mean()
    }
}

fn train(world: &World, width: usize) {
    let device = world.device().autodiff();
    let config = DdpConfig::default().with_placement(Placement::zero3());
    let mut ddp = Ddp::with_config(Chain::new(width, &device), world, config).unwrap();
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for _ in 0..3 {
        let x = Tensor::ones([1, width], &device);
        let step = ddp.backward(|model| model.loss(x)).unwrap();
        ddp.step(&mut optimizer, 1e-4, step.gradients).unwrap();
    }
}

/// The peak of resident memory of this program, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<f64>().unwrap() / 1024.0
}

#[test]
fn a_rank_has_its_shard_and_a_few_parameters() {
    if let Ok(width) = std::env::var(TASK) {
        let width = width.parse().unwrap();
        local(RANKS, GroupOptions::default(), |group| {
            let local = LocalRank {
                local_rank: group.rank().get(),
                local_world_size: RANKS,
            };
            let world = World::new(group, local, DeviceKind::Cpu).unwrap();
            train(&world, width);
        });
        println!("peak {}", peak_mib());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_rank_has_its_shard_and_a_few_parameters",
            "--nocapture",
        ])
        .env(TASK, "2048")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let peak: f64 = printed
        .split("peak ")
        .nth(1)
        .expect("it prints its peak")
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let unit = 2048.0 * 2048.0 * 4.0 / f64::from(1 << 20);
    println!(
        "peak {peak} MiB, formula {}, units above per rank {}",
        4.0 * unit * LAYERS as f64,
        (peak - 4.0 * unit * LAYERS as f64) / unit / f64::from(RANKS)
    );
}
