//! Trains attention over a sequence of which each rank has some tokens: `context_parallel --nproc 2`, or 4.

use bonfire::nn::AttentionMask;
use bonfire::parallel::{ParallelError, ring_attention, zigzag_split};
use bonfire::prelude::*;
use bonfire::world::Axis;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};

// ANCHOR: model
#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
}

impl Attention {
    /// Attention over this rank's tokens, `[batch, tokens, features]`.
    fn forward(&self, x: Tensor<3>, cp: &World) -> Result<Tensor<3>, ParallelError> {
        let query = self.query.forward(x.clone());
        let key = self.key.forward(x.clone());
        ring_attention(query, key, self.value.forward(x), AttentionMask::Causal, cp)
    }
}
// ANCHOR_END: model

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    // ANCHOR: mesh
    let mesh = world.mesh("dp=-1,cp=2")?;
    let cp = mesh.sub(Axis::Cp);
    let mut ddp = Ddp::new(model(&world.device().autodiff()), mesh.replicas())?;
    // ANCHOR_END: mesh
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut loss = f64::NAN;
    for step in 0..200 {
        let (x, target) = batch(mesh.data(), step);
        // ANCHOR: step
        // Ranks of cp are given the same batch.
        let x = zigzag_split(x, 1, cp)?;
        let target = zigzag_split(target, 1, cp)?;
        let done = ddp.backward(|model| -> Result<_, ParallelError> {
            Ok((model.forward(x, cp)? - target).powi_scalar(2).mean())
        })?;
        ddp.step(&mut optimizer, 0.01, done.gradients)?;
        // ANCHOR_END: step
        loss = done.loss.over_ranks(mesh.replicas())?;
    }
    println!("rank {}: loss {loss:.6}", world.rank());
    Ok(())
}

fn model(device: &Device) -> Attention {
    let layer = || LinearConfig::new(4, 4).init(device);
    Attention { query: layer(), key: layer(), value: layer() }
}

/// Sequences of eight tokens, and what is to be found at each: the mean of the tokens so far.
fn batch(data: &World, step: u64) -> (Tensor<3>, Tensor<3>) {
    let device = data.device().autodiff();
    device.seed(1000 * (1 + u64::from(data.rank().get())) + step);
    let x = Tensor::<3>::random([16, 8, 4], Distribution::Default, &device);
    let counts = Tensor::<1, burn::tensor::Int>::arange(1..9, &device).float();
    let mean = x.clone().cumsum(1) / counts.reshape([1, 8, 1]);
    (x, mean)
}
