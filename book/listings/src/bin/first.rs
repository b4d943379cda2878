//! The first program of the README, of the book and of the documentation of the crate.

// ANCHOR: program
use bonfire::prelude::*;
use burn::nn::LinearConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(LinearConfig::new(1, 1).init(&device), &world)?; // rank 0's parameters
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut loss = f64::NAN;
    for _ in 0..300 {
        let x = Tensor::<2>::random([8, 1], Distribution::Default, &device);
        let y = x.clone() * 3.0 + 1.0;
        let step = ddp.backward(|model| (model.forward(x) - y).powi_scalar(2).mean())?; // averages
        ddp.step(&mut optimizer, 0.3, step.gradients)?;
        loss = step.loss.over_ranks(&world)?;
    }
    let (rank, ranks) = (world.rank(), world.world_size());
    println!("rank {rank} of {ranks}: loss {loss:.4}");
    Ok(())
}
// ANCHOR_END: program
