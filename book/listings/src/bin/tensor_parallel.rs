//! Trains a block whose two layers are divided among pairs of ranks: `tensor_parallel --nproc 2`, or 4.

use bonfire::optim::Clip;
use bonfire::parallel::{ColumnParallelLinear, RowParallelLinear};
use bonfire::prelude::*;
use bonfire::world::Axis;
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Distribution, Tensor, activation};

// ANCHOR: model
#[derive(Module, Debug)]
struct Mlp {
    up: ColumnParallelLinear,
    down: RowParallelLinear,
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(activation::gelu(self.up.forward(x)))
    }
}
// ANCHOR_END: model

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    // ANCHOR: mesh
    let mesh = world.mesh("dp=-1,tp=2")?;
    let tp = mesh.sub(Axis::Tp);
    let device = world.device().autodiff();
    device.seed(7); // the same unpartitioned layers on all ranks
    let (up, down) = (LinearConfig::new(8, 32), LinearConfig::new(32, 8));
    let model = Mlp {
        up: ColumnParallelLinear::from_linear(up.init(&device), tp)?,
        down: RowParallelLinear::from_linear(down.init(&device), tp)?,
    };
    let mut ddp = Ddp::new(model, mesh.replicas())?;
    // ANCHOR_END: mesh
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let mut loss = f64::NAN;
    for step in 0..100 {
        // Ranks of one place on the data axes see the same batch.
        device.seed(1000 * (1 + u64::from(mesh.data().rank().get())) + step);
        let x = Tensor::<2>::random([32, 8], Distribution::Default, &device);
        // ANCHOR: step
        let done = ddp.backward(|model| (model.forward(x.clone()) - x).powi_scalar(2).mean())?;
        let gradients = done.gradients.clip(Clip::Norm(1.0))?;
        ddp.step(&mut optimizer, 0.01, gradients)?;
        // ANCHOR_END: step
        loss = done.loss.value()?;
    }
    println!("rank {}: loss {loss:.6}", world.rank());
    Ok(())
}
