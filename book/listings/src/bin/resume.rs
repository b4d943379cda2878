//! A training of several epochs that validates, stops when it is asked to, and resumes.

// ANCHOR: all
use std::process::ExitCode;

use bonfire::checkpoint::{Best, Milestone};
use bonfire::data::{Remainder, SamplerState};
use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use bonfire::world::StopRequest;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

const EPOCHS: u64 = 50;
const SAMPLES: usize = 100;
const BATCH: usize = 8;
const SEED: u64 = 3;

#[derive(Module, Debug)]
struct Line {
    layer: Linear,
}

impl Line {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = x.clone() * 3.0 + 1.0;
        (self.layer.forward(x) - y).powi_scalar(2).mean()
    }
}

fn points(indices: &[usize], device: &Device) -> Tensor<2> {
    let points: Vec<f32> = indices.iter().map(|&index| index as f32 / SAMPLES as f32).collect();
    Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim(1)
}

fn train(world: &World) -> bonfire::Result<ExitCode> {
    let device = world.device().autodiff();
    device.seed(SEED);
    let model = Line { layer: LinearConfig::new(1, 1).init(&device) };
    let mut ddp = Ddp::new(model, world)?;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut loader = Loader::new(world, SAMPLES, BATCH).with_shuffle(SEED);

    let keep = Keep::last(3).and_best(Best::Lowest);
    let checkpoints = Checkpoints::open(world, "runs/line", keep)?;
    let mut step = 0;
    if let Some(resumed) = checkpoints.resume::<_, SamplerState>(&mut ddp, &mut optimizer)? {
        step = resumed.milestone.step;
        loader = loader.resuming(&resumed.state)?;
    }

    let stop = StopRequest::watch(); // Ctrl-C, SIGTERM, SIGHUP
    while loader.epoch() < EPOCHS {
        let number = loader.epoch(); // from 0
        let mut epoch = loader.next_epoch(); // after a resume, the rest of it
        while let Some(indices) = epoch.next() {
            world.seed_step(SEED, step);
            let x = points(&indices, &device);
            let done = ddp.backward(|model| model.loss(x))?;
            ddp.step(&mut optimizer, 0.1, done.gradients)?;
            step += 1;

            let metric = if epoch.len() == 0 { Some(validate(&ddp, world)?) } else { None };
            let is_stop = stop.agreed(world)?.is_some(); // the same on all ranks
            if metric.is_some() || is_stop {
                let milestone = Milestone { step, metric };
                checkpoints.save(milestone, &mut ddp, &optimizer, &epoch.state())?;
            }
            if let Some(loss) = metric.filter(|_| world.is_main()) {
                println!("epoch {number} step {step} loss {loss:.6}");
            }
            if is_stop {
                return Ok(stop.exit_code().into());
            }
        }
    }
    println!("parameters {}", ddp.digest()?);
    Ok(ExitCode::SUCCESS)
}

fn validate(ddp: &Ddp<Line>, world: &World) -> bonfire::Result<f64> {
    let model = ddp.module().valid();
    let mut loader = Loader::new(world, SAMPLES, BATCH).with_remainder(Remainder::Exact);
    let mut losses = WeightedMean::new();
    for indices in loader.next_epoch() {
        let loss = model.loss(points(&indices, &world.device()));
        losses.add(loss.into_scalar::<f64>(), indices.len());
    }
    Ok(losses.over_ranks(world)?)
}

fn main() -> bonfire::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    bonfire::launch(|world| train(&world).map(|ended| code = ended))?;
    Ok(code)
}
// ANCHOR_END: all
