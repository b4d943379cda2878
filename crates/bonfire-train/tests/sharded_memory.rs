//! How much memory a model takes whose parameters are sharded as they are initialised, and its training: the most that
//! a program ever had, which it asks the system for in the end. So each measurement is a program of its own, this one
//! started again, with its ranks as threads.

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
use burn::tensor::{Tensor, activation};

const RANKS: u32 = 8;
const LAYERS: usize = 24;

/// Of a layer's weight, 16 MiB.
const WIDTH: usize = 2048;

/// Set where this program is the one that is measured, to the steps that it trains.
const TASK: &str = "SHARDED_MEMORY_TASK";

/// 100 million parameters, which Burn initialises when they are first used.
#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let forward = |x, layer: &Linear| activation::relu(layer.forward(x));
        self.layers.iter().fold(x, forward).mean()
    }
}

fn train(world: &World, steps: usize) {
    let device = world.device().autodiff();
    let layer = |_| {
        let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        config.init(&device)
    };
    let model = Layers { layers: (0..LAYERS).map(layer).collect() };
    let config = DdpConfig::default().with_placement(Placement::zero3());
    let mut ddp = Ddp::with_config(model, world, config).unwrap();
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    for _ in 0..steps {
        let x = Tensor::ones([1, WIDTH], &device);
        let step = ddp.backward(|model| model.loss(x)).unwrap();
        ddp.step(&mut optimizer, 1e-4, step.gradients).unwrap();
    }
    // Nobody is done before all are.
    world.group().barrier().unwrap();
}

/// The peak of resident memory of this program, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<f64>().unwrap() / 1024.0
}

/// Parameters that a rank has besides its rows of `states` for each, in a training of so many steps.
fn besides(steps: usize, states: usize) -> f64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_rank_has_a_few_parameters_at_a_time", "--nocapture"])
        .env(TASK, steps.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let peak = printed.lines().find_map(|line| line.split("peak ").nth(1));
    let peak: f64 = peak.unwrap().parse().unwrap();
    // The rows of all ranks are one model.
    let parameter = (WIDTH * WIDTH * 4) as f64 / f64::from(1 << 20);
    let besides = (peak - (states * LAYERS) as f64 * parameter) / parameter / f64::from(RANKS);
    println!("{steps} steps: {peak} MiB, {besides} parameters on each rank besides its rows");
    besides
}

#[test]
fn a_rank_has_a_few_parameters_at_a_time() {
    if let Ok(steps) = std::env::var(TASK) {
        let steps = steps.parse().unwrap();
        local(RANKS, GroupOptions::default(), |group| {
            let local = LocalRank { local_rank: group.rank().get(), local_world_size: RANKS };
            train(&World::new(group, local, DeviceKind::Cpu).unwrap(), steps);
        });
        println!("\npeak {}", peak_mib());
        return;
    }
    // While it is made: one parameter, and that in the making. While it is trained: one that is gathered and one
    // that is used, a gradient, and two buckets on their way; the allocator keeps some more.
    for (steps, states, most) in bonfire_testkit::some(&[(0, 1, 6.0), (3, 4, 10.0)], 1) {
        let besides = besides(*steps, *states);
        assert!(besides < *most, "{besides} parameters on each rank");
    }
}
