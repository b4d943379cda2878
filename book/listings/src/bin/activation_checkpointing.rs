//! A deep model that keeps the inputs of its blocks only. With the argument `plain` it keeps everything.

use bonfire::collective::Rank;
use bonfire::nn::recompute;
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, activation};

const WIDTH: usize = 16;

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inner = activation::gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(inner)
    }
}

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Block>,
    plain: bool,
}

impl Net {
    fn new(device: &Device, plain: bool) -> Self {
        let block = |_| Block {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        };
        let blocks = (0..6).map(block).collect();
        Self { blocks, plain }
    }

    // ANCHOR: forward
    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for block in &self.blocks {
            x = if self.plain {
                block.forward(x)
            } else {
                recompute(block, x, |block, x| block.forward(x))
            };
        }
        x
    }
    // ANCHOR_END: forward
}

/// The same numbers for the same step and rank, `[32, 16]`.
fn batch(step: u64, rank: Rank, device: &Device) -> Tensor<2> {
    let start = (step * 1000 + u64::from(rank.get()) * 97) as i64;
    let numbers = Tensor::<1, Int>::arange(start..start + 32 * WIDTH as i64, device).float();
    (numbers * 1.7).sin().reshape([32, WIDTH])
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    // Drawn alike for either way.
    device.seed(7);
    let plain = std::env::args().nth(1).is_some_and(|word| word == "plain");
    let mut ddp = Ddp::new(Net::new(&device, plain), &world)?;
    let mut optimizer = AdamWConfig::new().init();
    // ANCHOR: train
    for step in 0..60 {
        // What dropout draws then depends on seed, step and rank, also in segments.
        world.seed_step(7, step);
        let x = batch(step, world.rank(), &device);
        let done = ddp.backward(|net| {
            let target = x.clone().flip([1]);
            (net.forward(x) - target).square().mean()
        })?;
        ddp.step(&mut optimizer, 0.003, done.gradients)?;
        // ANCHOR_END: train
        if step == 59 {
            let loss = done.loss.over_ranks(&world)?;
            let digest = ddp.digest()?;
            if world.is_main() {
                println!("parameters {digest} loss {loss:.6}");
            }
        }
    }
    Ok(())
}
