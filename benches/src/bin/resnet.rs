//! Images per second of a step of ResNet-18 on images of 32 x 32 pixels, as the example `vision` trains it.
//!
//! `cargo run --release -p bonfire-benches --bin resnet -- --nproc 2`
//!
//! Prints a line of JSON, which `benches/peers/run --vision` reads.

#![forbid(unsafe_code)]

use bonfire::ddp::Loss;
use bonfire::optim::SgdConfig;
use bonfire::prelude::*;
use bonfire::{Ddp, LaunchArgs};
use bonfire_benches::{median, timed};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Distribution, Int, Tensor};
use clap::Parser;
use vision::networks::resnet::{Depth, ResNetConfig};

/// Time the steps of a training of ResNet-18.
#[derive(Clone, Debug, Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    /// Images per rank and step
    #[arg(long, default_value_t = 128)]
    batch: usize,

    /// Pixels on a side of an image
    #[arg(long, default_value_t = 32)]
    side: usize,

    /// Timed steps, of which the median counts
    #[arg(long, default_value_t = 20)]
    steps: usize,
}

const CLASSES: usize = 10;

/// Steps before the first that is timed: buckets are rebuilt after the second.
const WARM_UP_STEPS: usize = 3;

fn main() -> bonfire::Result<()> {
    let args: Args = bonfire::launcher::parse_args();
    bonfire::launch_with(&args.launch.clone(), |world| measure(&world, &args))
}

fn measure(world: &World, args: &Args) -> anyhow::Result<()> {
    let device = world.device().autodiff();
    let config = ResNetConfig::new(Depth::ResNet18, CLASSES);
    let mut ddp = Ddp::new(config.init(1, &world.device()), world)?;
    let sgd = SgdConfig::new().with_momentum(0.9).with_nesterov(true);
    let mut optimizer: ModuleOptimizer = sgd.init();
    let (images, labels) = batch(args, &device);
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    let mut times = Vec::new();
    let mut last = f64::NAN;
    for step in 0..args.steps + WARM_UP_STEPS {
        let time = timed(world, || {
            let step = ddp.backward(|model| {
                let scores = model.forward(images.clone());
                let loss = cross_entropy.forward(scores, labels.clone());
                Loss::mean_over(loss, args.batch)
            })?;
            last = step.loss.over_ranks(world)?;
            Ok(ddp.step(&mut optimizer, 0.01, step.gradients)?)
        })?;
        if step >= WARM_UP_STEPS {
            times.push(time.as_secs_f64());
        }
    }
    if world.is_main() {
        let images = args.batch * world.world_size().len();
        let per_second = images as f64 / median(times);
        println!("{{\"images_per_second\": {per_second:.1}, \"loss\": {last:.4}}}");
    }
    Ok(())
}

/// Random images, each rank's own, and what they show.
fn batch(args: &Args, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let shape = [args.batch, 3, args.side, args.side];
    let images = Tensor::random(shape, Distribution::Normal(0.0, 1.0), device);
    let labels = Tensor::arange(0..args.batch as i64, device).remainder_scalar(CLASSES as i64);
    (images, labels)
}
