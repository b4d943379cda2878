//! Trains with an optimizer that reads and writes memory once.

// ANCHOR: imports
use bonfire::optim::AdamWConfig;
use bonfire::prelude::*;
use burn::module::ParamGroup;
// ANCHOR_END: imports

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Distribution, Tensor};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let model: Linear = LinearConfig::new(4, 1).init(&device);
    let mut ddp = Ddp::new(model, &world)?;
    // ANCHOR: optimizer
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let undecayed = config.with_weight_decay(0.0).build();
    let biases = ParamGroup::from_predicate("bias");
    let mut optimizer = config.init().with_group(biases, undecayed, None);
    // ANCHOR_END: optimizer
    let mut loss = f64::NAN;
    for _ in 0..300 {
        let x = Tensor::<2>::random([16, 4], Distribution::Default, &device);
        let step = ddp.backward(|model| (model.forward(x) - 2.0).powi_scalar(2).mean())?;
        ddp.step(&mut optimizer, 0.05, step.gradients)?;
        loss = step.loss.over_ranks(&world)?;
    }
    println!("rank {}: loss {loss:.6}", world.rank());
    Ok(())
}
