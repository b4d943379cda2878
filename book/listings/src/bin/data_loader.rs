//! An own loop over Burn's batches, on as many ranks as there are.

use bonfire::data::{DatasetLoader, Prefetch, Remainder};
use bonfire::prelude::*;
use bonfire::report::WeightedMean;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

/// A line that is to be found.
#[derive(Module, Debug)]
struct Line {
    layer: Linear,
}

impl Line {
    fn loss(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        (self.layer.forward(x) - y).powi_scalar(2).mean()
    }
}

/// Points between -1 and 1.
struct Points;

impl Dataset<f32> for Points {
    fn get(&self, index: usize) -> Result<f32, DatasetError> {
        Ok(index as f32 * 2.0 / self.len() as f32 - 1.0)
    }

    fn len(&self) -> usize {
        101
    }
}

struct OnTheLine;

impl Batcher<f32, (Tensor<2>, Tensor<2>)> for OnTheLine {
    fn batch(&self, points: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim(1);
        (x.clone(), x * 3.0 - 1.0)
    }
}

// ANCHOR: loop
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> Result<(), Error> {
    let device = world.device().autodiff();
    let model = Line { layer: LinearConfig::new(1, 1).init(&device) };
    let mut ddp = Ddp::new(model, &world)?;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let loader = DatasetLoader::new(&world, Points, OnTheLine, 8)
        .with_shuffle(1)
        .with_prefetch(Prefetch::default())
        .with_device(&device);
    for epoch in 1..=40 {
        let mut losses = WeightedMean::new();
        for batch in loader.iter() {
            let batch = batch?;
            let step = ddp.backward(|model| model.loss(batch))?;
            ddp.step(&mut optimizer, 0.1, step.gradients)?;
            losses.add(step.loss.value()?, 1);
        }
        let loss = losses.over_ranks(&world)?;
        if world.is_main() {
            println!("epoch {epoch} loss {loss:.6}");
        }
    }
    let loss = validate(&ddp, &world)?;
    if world.is_main() {
        println!("validation loss {loss:.6}");
    }
    Ok(())
}
// ANCHOR_END: loop

// ANCHOR: validate
fn validate(ddp: &Ddp<Line>, world: &World) -> Result<f64, Error> {
    let model = ddp.module().valid();
    let loader = DatasetLoader::new(world, Points, OnTheLine, 8)
        .with_remainder(Remainder::Exact)
        .with_device(&world.device());
    let mut losses = WeightedMean::new();
    for batch in loader.iter() {
        let (x, y) = batch?;
        let samples = x.dims()[0];
        losses.add(model.loss((x, y)).into_scalar::<f64>(), samples);
    }
    Ok(losses.over_ranks(world)?)
}
// ANCHOR_END: validate
