//! Trains with the state of the optimizer in files.

use bonfire::optim::{AdamWConfig, Offload};
use bonfire::prelude::*;
use burn::nn::{Linear, LinearConfig};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let model: Linear = LinearConfig::new(4096, 4).init(&device);
    let mut ddp = Ddp::new(model, &world)?;
    // ANCHOR: offload
    let offload = Offload::to_files(std::env::temp_dir())?;
    let adamw = AdamWConfig::new().build().with_offload(offload);
    let mut optimizer = ModuleOptimizer::from(adamw);
    // ANCHOR_END: offload
    let mut loss = f64::NAN;
    for _ in 0..200 {
        let x = Tensor::<2>::random([16, 4096], Distribution::Default, &device);
        let step = ddp.backward(|model| (model.forward(x) - 2.0).powi_scalar(2).mean())?;
        ddp.step(&mut optimizer, 1e-4, step.gradients)?;
        loss = step.loss.over_ranks(&world)?;
    }
    println!("rank {}: loss {loss:.6}", world.rank());
    Ok(())
}
