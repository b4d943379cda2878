//! The naive model parallel of the tutorials: each layer on its own device, by a device map, and activations move
//! between them. With `--nproc 2` each process has such a model, and `Ddp` averages their gradients.
//!
//! The first layer is on the CPU, the second on the rank's device: a GPU where the program is built for one.

use bonfire::prelude::*;
use bonfire::weights::Dispatch;
use bonfire::weights::device_map::DeviceMap;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,
}

#[derive(Module, Debug)]
struct ToyModel {
    net1: Linear,
    net2: Linear,
}

impl ToyModel {
    fn new(device: &Device) -> Self {
        Self {
            net1: LinearConfig::new(10_000, 10).init(device),
            net2: LinearConfig::new(10, 5).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.net1.forward(x));
        self.net2.forward(x.to_device(&self.net2.weight.device()))
    }
}

const BATCH: usize = 20;

fn main() -> bonfire::Result<()> {
    let args = Args::parse();
    bonfire::launch_with(&args.launch, |world| train(&world))
}

fn train(world: &World) -> bonfire::Result<()> {
    let devices = [Device::flex(), world.device()];
    devices[0].seed(0);
    let model = ToyModel::new(&devices[0]);
    let [first, second] = devices.clone().map(Device::autodiff);
    let normal = Distribution::Normal(0.0, 1.0);
    let inputs = Tensor::<2>::random([BATCH, 10_000], normal, &first);
    let labels = Tensor::<2>::random([BATCH, 5], normal, &first).to_device(&second);
    let share = BATCH / world.world_size().len();
    let start = share * world.rank().index();
    let [inputs, labels] = [inputs, labels].map(|all| all.narrow(0, start, share));

    let map = DeviceMap::new([("net1", "0"), ("net2", "1")])?;
    let model = Dispatch::new(map, devices)?.apply(model)?;
    let mut ddp = Ddp::new(model, world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..100 {
        let loss = |model: &ToyModel| {
            let outputs = model.forward(inputs.clone());
            (outputs - labels.clone()).powi_scalar(2).mean()
        };
        let step = ddp.backward(loss)?;
        losses.push(step.loss.over_ranks(world)?);
        ddp.step(&mut optimizer, 0.01, step.gradients)?;
    }
    println!("rank {}: parameters {}", world.rank(), ddp.digest()?);
    if world.is_main() {
        println!("mean: loss {:.6}, at first {:.6}", losses[99], losses[0]);
    }
    Ok(())
}
