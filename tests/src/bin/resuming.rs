//! A training that saves itself and goes on from where it was, for the test that kills it.
//!
//! `resuming FOLDER STEPS [--route WAY]` prints the process id of every rank and, at the end, a digest
//! of the parameters of every rank. The way is that of the gradients.

use std::time::Duration;

use anyhow::Context;
use bonfire::checkpoint::{Checkpoints, Keep, Milestone};
use bonfire::data::{Loader, SamplerState};
use bonfire::ddp::Loss;
use bonfire::{Ddp, DdpConfig, World};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};

const SAMPLES: usize = 101;

/// A layer, dropout, and another layer.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    dropout: Dropout,
    second: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(1, 8).init(device),
            dropout: DropoutConfig::new(0.25).init(),
            second: LinearConfig::new(8, 1).init(device),
        }
    }

    fn loss(&self, indices: &[usize], device: &Device) -> Loss {
        let points: Vec<f32> = indices.iter().map(|index| *index as f32 / 20.0).collect();
        let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim::<2>(1);
        let hidden = self.dropout.forward(self.first.forward(x.clone()).tanh());
        let error = self.second.forward(hidden) - x.sin();
        Loss::mean_over(error.powi_scalar(2).mean(), indices.len())
    }

    /// The bits of all parameters, as one number.
    fn digest(&self) -> u64 {
        let layers = [&self.first, &self.second];
        let tensors = layers.map(|layer| {
            let bias = layer.bias.as_ref().map(|bias| bias.val().into_data());
            [Some(layer.weight.val().into_data()), bias]
        });
        let data = tensors.into_iter().flatten().flatten();
        let bytes = data.flat_map(|data| data.as_bytes().to_vec());
        // FNV-1a.
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> anyhow::Result<()> {
    println!("pid {}", std::process::id());
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("the first argument is a folder")?;
    let steps: u64 = arguments.next().context("then the steps")?.parse()?;
    let mut config = DdpConfig::default();
    if arguments.any(|argument| argument == "--route") {
        config.route = arguments.next().context("--route has a name")?.parse()?;
    }

    let checkpoints = Checkpoints::open(&world, folder, Keep::default())?;
    let device = world.device().autodiff();
    world.seed_step(0, 0);
    let mut ddp = Ddp::with_config(Net::new(&device), &world, config)?;
    let mut optimizer = AdamWConfig::new().init();
    let mut loader = loader(&world);
    let mut first = 0;
    let resumed = checkpoints.resume::<_, SamplerState>(&mut ddp, &mut optimizer)?;
    if let Some(resumed) = resumed {
        loader = loader.resuming(&resumed.state)?;
        first = resumed.milestone.step;
    }
    let mut batches = loader.next_epoch();
    for step in first..steps {
        if batches.len() == 0 {
            batches = loader.next_epoch();
        }
        let indices = batches.next().context("an epoch has batches")?;
        world.seed_step(1, step);
        let done = ddp.backward(|model| model.loss(&indices, &device))?;
        ddp.step(&mut optimizer, 0.01, done.gradients)?;
        let milestone = Milestone { step: step + 1, metric: None };
        checkpoints.save(milestone, &mut ddp, &optimizer, &batches.state())?;
        // So slow that a kill finds it at work.
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("parameters {:016x}", ddp.module().digest());
    Ok(())
}

fn loader(world: &World) -> Loader {
    Loader::new(world, SAMPLES, 4).with_shuffle(3)
}
