//! Trains on a data set that the ranks divide.

// ANCHOR: imports
use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
// ANCHOR_END: imports

// ANCHOR: model
#[derive(Module, Debug)]
struct Line {
    layer: Linear,
}

impl Line {
    fn new(device: &Device) -> Self {
        Self { layer: LinearConfig::new(1, 1).init(device) }
    }

    /// Mean squared distance to y = 3x + 1 at the points `x`, `[batch, 1]`.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = x.clone() * 3.0 + 1.0;
        (self.layer.forward(x) - y).powi_scalar(2).mean()
    }
}
// ANCHOR_END: model

// ANCHOR: train
fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(Line::new(&device), &world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let mut loader = Loader::new(&world, 64, 8).with_shuffle(7);
    for _ in 0..60 {
        let mut epoch_loss = WeightedMean::new();
        for indices in loader.next_epoch() {
            let points: Vec<f32> = indices.iter().map(|index| *index as f32 / 64.0).collect();
            let x = Tensor::<1>::from_floats(points.as_slice(), &device).unsqueeze_dim(1);
            let step = ddp.backward(|model| model.loss(x))?;
            ddp.step(&mut optimizer, 0.3, step.gradients)?;
            epoch_loss.add(step.loss.value()?, indices.len());
        }
        let loss = epoch_loss.over_ranks(&world)?;
        if world.is_main() && loader.epoch().is_multiple_of(20) {
            println!("epoch {} loss {loss:.6}", loader.epoch());
        }
    }
    Ok(())
}
// ANCHOR_END: train
