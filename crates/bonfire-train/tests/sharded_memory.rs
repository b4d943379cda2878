//! How much memory a model takes whose parameters are sharded as they are initialised, and its training: the most that
//! a program ever had, which it asks the system for in the end. So each measurement is a program of its own, this one
//! started again, with its ranks as threads.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_collective::GroupOptions;
use bonfire_optim::AdamWConfig;
use bonfire_testkit::{local, measured, print_figure, task};
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, Placement, Resident, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Tensor, activation};

const RANKS: u32 = 8;
const LAYERS: usize = 24;

/// Of a layer's weight, 16 MiB.
const WIDTH: usize = 2048;

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

/// Parameters that a rank has besides its rows of `states` for each, in a training of so many steps.
fn besides(steps: usize, states: usize) -> f64 {
    let peak = measured("a_rank_has_a_few_parameters_at_a_time", &steps.to_string());
    // The rows of all ranks are one model.
    let parameters = peak as f64 / (WIDTH * WIDTH * 4) as f64;
    let besides = (parameters - (states * LAYERS) as f64) / f64::from(RANKS);
    println!("{steps} steps: {peak} bytes, {besides} parameters on each rank besides its rows");
    besides
}

#[test]
fn a_rank_has_a_few_parameters_at_a_time() {
    if let Some(steps) = task() {
        let steps = steps.parse().unwrap();
        local(RANKS, GroupOptions::default(), |group| {
            let local = LocalRank { local_rank: group.rank().get(), local_world_size: RANKS };
            train(&World::new(group, local, DeviceKind::Cpu).unwrap(), steps);
        });
        return print_figure(Resident::of_this_process().unwrap().peak_bytes);
    }
    // While it is made: one parameter, and that in the making. While it is trained: one that is gathered and one
    // that is used, a gradient, and two buckets on their way; the allocator keeps some more.
    for (steps, states, most) in bonfire_testkit::some(&[(0, 1, 6.0), (3, 4, 10.0)], 1) {
        let besides = besides(*steps, *states);
        assert!(besides < *most, "{besides} parameters on each rank");
    }
}
