//! A training that is saved, and resumed in the middle of an epoch. Its arguments are a folder for checkpoints and the
//! steps of this part.

use std::time::Duration;

use bonfire::checkpoint::{Best, Milestone};
// ANCHOR: data_imports
use bonfire::data::{Prefetch, Prefetched, SamplerState};
// ANCHOR_END: data_imports
use bonfire::prelude::*; // with Checkpoints, Ddp, Keep, Loader and World
use serde::{Deserialize, Serialize};

use bonfire::collective::Rank;
use bonfire::ddp::DataParallel;
use bonfire::world::StopRequest;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

const SAMPLES: usize = 96;
const SEED: u64 = 3;

#[derive(Module, Debug)]
struct Line {
    dropout: Dropout,
    layer: Linear,
}

impl Line {
    fn new(device: &Device) -> Self {
        Self {
            dropout: DropoutConfig::new(0.1).init(),
            layer: LinearConfig::new(1, 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layer.forward(self.dropout.forward(x))
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = x.clone() * 3.0 + 1.0;
        (self.forward(x) - y).powi_scalar(2).mean()
    }
}

fn points(indices: &[usize], device: &Device) -> Tensor<2> {
    let points = indices.iter().map(|index| *index as f32 / SAMPLES as f32);
    let points: Vec<f32> = points.collect();
    Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim(1)
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

/// What the next step depends on, besides the model and the optimizer.
#[derive(Serialize, Deserialize)]
struct State {
    data: SamplerState,
}

/// The number of all samples, which rank 0 counts for as long as it takes.
fn counted(world: &World) -> bonfire::Result<usize> {
    let mut count = [if world.is_main() { SAMPLES as u64 } else { 0 }];
    let group = world.group();
    // ANCHOR: timeout
    // Rank 0 reads all files, which takes minutes; the others wait here.
    group.with_timeout(Duration::from_secs(1800)).broadcast(&mut count, Rank::new(0))?;
    // ANCHOR_END: timeout
    Ok(count[0] as usize)
}

fn train(world: World) -> bonfire::Result<()> {
    let mut words = std::env::args_os().skip(1);
    let folder = words.next().unwrap_or_else(|| "runs/first".into());
    let steps = words.next().and_then(|text| text.to_str()?.parse().ok());
    let steps: u64 = steps.unwrap_or(40);
    let device = world.device().autodiff();
    device.seed(SEED); // for the initial parameters
    let model = Line::new(&device);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut loader = Loader::new(&world, counted(&world)?, 4).with_shuffle(SEED);

    let keep = Keep::last(3).and_best(Best::Lowest);
    let checkpoints = Checkpoints::open(&world, &folder, keep)?;
    let mut ddp = Ddp::new(model, &world)?;
    let mut step = 0;
    if let Some(resumed) = checkpoints.resume::<_, State>(&mut ddp, &mut optimizer)? {
        step = resumed.milestone.step;
        loader = loader.resuming(&resumed.state.data)?;
    }
    let last = step + steps;
    let stop = StopRequest::watch(); // Ctrl-C, SIGTERM, SIGHUP
    let loss = 'training: loop {
        // ANCHOR: prefetch
        let to = device.clone();
        let prepare = move |indices: &[usize]| Ok::<_, bonfire::Error>(points(indices, &to));
        let mut epoch = loader.next_epoch().prefetch(Prefetch::default(), prepare)?;
        // ANCHOR_END: prefetch
        while let Some(([first, second], data)) = pair(&mut epoch)? {
            world.seed_step(SEED, step);
            // ANCHOR: accumulate
            ddp.no_sync(|model| model.loss(first))?; // stays on this rank
            let done = ddp.backward(|model| model.loss(second))?; // the mean over both, on all ranks
            ddp.step(&mut optimizer, 0.1, done.gradients)?;
            // ANCHOR_END: accumulate
            step += 1;
            // After each step, on all ranks.
            let is_last = step == last || stop.agreed(&world)?.is_some();
            if step % 10 == 0 || is_last {
                let loss = done.loss.over_ranks(&world)?;
                let milestone = Milestone { step, metric: Some(loss) };
                let state = State { data };
                if is_last {
                    checkpoints.save(milestone, &mut ddp, &optimizer, &state)?;
                    break 'training loss;
                }
                checkpoints.save_in_background(milestone, &mut ddp, &optimizer, &state)?;
            }
        }
    };
    checkpoints.wait()?;
    println!("step {step} of {} loss {loss}", ddp.digest()?);
    if world.is_main() {
        in_one_process(ddp.into_module(), vec![world.device(), world.device()])?;
    }
    Ok(())
}

// ANCHOR: pair
type Pair = ([Tensor<2>; 2], SamplerState);

/// The two micro-batches of a step, and how far all ranks are after it.
fn pair(epoch: &mut Prefetched<Tensor<2>>) -> bonfire::Result<Option<Pair>> {
    let (Some(first), Some(second)) = (epoch.next(), epoch.next()) else {
        return Ok(None);
    };
    let (first, second) = (first?, second?);
    Ok(Some(([first.batch, second.batch], second.state)))
}
// ANCHOR_END: pair

/// Two more steps, without ranks.
fn in_one_process(model: Line, devices: Vec<Device>) -> bonfire::Result<()> {
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let batch = points(&[1, 2, 3, 4], &devices[0]);
    // ANCHOR: devices
    let mut parallel = DataParallel::new(model, devices);
    let gradients = parallel.backward(&batch, |model, x| model.loss(x))?;
    parallel.step(&mut optimizer, 0.1, gradients);
    // ANCHOR_END: devices
    let (x, y) = (batch.clone(), batch * 3.0 + 1.0);
    // ANCHOR: output
    let output = parallel.forward(&x, |model, x| model.forward(x))?;
    let loss = (output - y).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), parallel.module());
    parallel.step(&mut optimizer, 0.1, gradients);
    // ANCHOR_END: output
    Ok(())
}
