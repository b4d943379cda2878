//! Gradients over NCCL if it is installed, and without it otherwise.

use bonfire::ddp::{GradientRoute, TrainError};
use bonfire::prelude::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

// ANCHOR: route
/// Replicates a model, with gradients over NCCL if all ranks have it, else by the default route.
fn replicated<M: Module>(model: M, world: &World) -> Result<Ddp<M>, TrainError> {
    let config = DdpConfig::default().with_route(GradientRoute::Nccl);
    match Ddp::with_config(model.clone(), world, config) {
        // The same error on all ranks, if one of them lacks something; the group continues.
        Err(error @ TrainError::NoDeviceRoute { .. }) => {
            if world.is_main() {
                println!("{error}");
            }
            Ddp::new(model, world)
        }
        replicated => replicated,
    }
}
// ANCHOR_END: route

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let model: Linear = LinearConfig::new(4, 1).init(&device);
    let mut ddp = replicated(model, &world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut loss = f64::NAN;
    for _ in 0..200 {
        let x = Tensor::<2>::random([16, 4], Distribution::Default, &device);
        let step = ddp.backward(|model| model.forward(x).powi_scalar(2).mean())?;
        ddp.step(&mut optimizer, 0.3, step.gradients)?;
        loss = step.loss.over_ranks(&world)?;
    }
    println!("rank {}: loss {loss:.6}", world.rank());
    Ok(())
}
