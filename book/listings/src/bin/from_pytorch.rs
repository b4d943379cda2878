//! The program of `from_pytorch.py`, part by part.

// ANCHOR: all
use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use bonfire::weights::{Export, save_weights};
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Line {
    layer: Linear,
}

impl Line {
    fn new(device: &Device) -> Self {
        let layer = LinearConfig::new(1, 1).init(device);
        Self { layer }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layer.forward(x)
    }
}

fn points(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let x: Vec<f32> = indices.iter().map(|&index| index as f32 / 64.0).collect();
    let x = Tensor::<1>::from_floats(x.as_slice(), device).unsqueeze_dim(1);
    (x.clone(), x * 3.0 + 1.0)
}

const BATCH: usize = 8;

fn train(world: World) -> bonfire::Result<()> {
    let device = world.device().autodiff();
    let mut ddp = Ddp::new(Line::new(&device), &world)?;
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let dataset = 64; // number of points
    let mut loader = Loader::new(&world, dataset, BATCH).with_shuffle(7);
    for epoch in 0..60 {
        let mut mean = WeightedMean::new();
        for indices in loader.next_epoch() {
            let (x, y) = points(&indices, &device);
            let mse_loss =
                |model: &Line| MseLoss::new().forward(model.forward(x), y, Reduction::Mean);
            let step = ddp.backward(mse_loss)?;
            ddp.step(&mut optimizer, 0.3, step.gradients)?;
            mean.add(step.loss.value()?, indices.len());
        }
        let loss = mean.over_ranks(&world)?;
        if world.is_main() {
            println!("epoch {epoch} loss {loss:.6}");
        }
    }
    save_weights(&mut ddp, Export::new("line.safetensors").for_pytorch())?;
    Ok(())
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}
// ANCHOR_END: all
