//! A model whose batch norm sees the batches of all ranks as one.

// ANCHOR: imports
use bonfire::ddp::Loss;
use bonfire::nn::{BatchNorm, BatchNormConfig, convert_sync_batch_norm};
use bonfire::prelude::*;
// ANCHOR_END: imports

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

// ANCHOR: model
#[derive(Module, Debug)]
struct Model {
    norm: BatchNorm, // of bonfire, with the parameters and the records of Burn's
    head: Linear,
}
// ANCHOR_END: model

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            norm: BatchNormConfig::new(1).init(device),
            head: LinearConfig::new(1, 1).init(device),
        }
    }

    /// Mean squared distance to y = x / 100 at the points `x`, `[batch, 1]`.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = x.clone() / 100.0;
        (self.head.forward(self.norm.forward(x)) - y).square().mean()
    }
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

// ANCHOR: train
fn train(world: World) -> bonfire::Result<()> {
    let device = world.device();
    let model = convert_sync_batch_norm(Model::new(&device), &world)?;
    let mut ddp = Ddp::new(model, &world)?;
    // ANCHOR_END: train
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    // 100 points: rank 0 has a quarter of them, and is out of data in every fourth step.
    let ranks = world.world_size().len();
    let mine: Vec<f32> = (0..100)
        .filter(|point| {
            let first = *point < 25 || ranks == 1;
            first == world.is_main() && (first || point % (ranks - 1) == world.rank().index() - 1)
        })
        .map(|point| point as f32)
        .collect();
    let options = device.autodiff();
    for step in 0..80 {
        // ANCHOR: uneven
        let idle = ranks > 1 && world.is_main() && step % 4 == 3;
        let done = ddp.backward(|model| {
            if idle {
                return Loss::mean_over(Tensor::zeros([1], &options), 0);
            }
            let x = Tensor::<1>::from_floats(mine.as_slice(), &options).unsqueeze_dim(1);
            Loss::mean_over(model.loss(x), mine.len())
        })?;
        // ANCHOR_END: uneven
        ddp.step(&mut optimizer, 0.1, done.gradients)?;
    }
    let mean = ddp.module().norm.running_mean.value().into_scalar::<f32>();
    println!("rank {}: running mean {mean:.3}", world.rank());
    Ok(())
}
