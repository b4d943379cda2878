//! Burn's learner on several ranks.

// ANCHOR: all
use std::sync::Arc;

use bonfire::data::{DatasetLoader, Order, Remainder};
use bonfire::learner::DistributedTraining;
use bonfire::prelude::*;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_train::metric::LossMetric;
use burn_train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};

/// A line that is to be found.
#[derive(Module, Debug)]
struct Line {
    layer: Linear,
}

impl Line {
    fn output(&self, (x, y): (Tensor<2>, Tensor<2>)) -> RegressionOutput {
        let output = self.layer.forward(x);
        let loss = (output.clone() - y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, y)
    }
}

impl TrainStep for Line {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> TrainOutput<RegressionOutput> {
        let item = self.output(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Line {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> RegressionOutput {
        self.output(batch)
    }
}

/// Points between -1 and 1.
struct Points(usize);

impl Dataset<f32> for Points {
    fn get(&self, index: usize) -> Result<f32, DatasetError> {
        Ok(index as f32 * 2.0 / self.0 as f32 - 1.0)
    }

    fn len(&self) -> usize {
        self.0
    }
}

struct OnTheLine;

impl Batcher<f32, (Tensor<2>, Tensor<2>)> for OnTheLine {
    fn batch(&self, points: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim(1);
        (x.clone(), x * 3.0 - 1.0)
    }
}

type Loader = Arc<DatasetLoader<f32, (Tensor<2>, Tensor<2>)>>;

fn loader(world: &World, samples: usize, order: Order, remainder: Remainder) -> Loader {
    let loader = DatasetLoader::new(world, Points(samples), OnTheLine, 8); // 8 samples per rank
    Arc::new(loader.with_order(order).with_remainder(remainder))
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let folder = std::env::temp_dir().join(format!("bonfire-learner-{}", std::process::id()));
    let model = Line { layer: LinearConfig::new(1, 1).init(&world.device().autodiff()) };
    let optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let train = loader(&world, 100, Order::Shuffled { seed: 1 }, Remainder::Pad);
    let valid = loader(&world, 13, Order::Sequential, Remainder::Exact);
    // ANCHOR: distributed
    let result = SupervisedTraining::new(&folder, train, valid)
        .metrics((LossMetric::new(),))
        .num_epochs(40)
        .distributed(&world) // rank 0 shows and saves; all train
        .launch(Learner::new(model, optimizer, 0.1));
    // ANCHOR_END: distributed
    if let Some(error) = result.error {
        return Err(error.to_string().into()); // the same on all ranks: it names the one at fault
    }
    drop(result.renderer); // the display, if there is one, would hide what comes
    let weight: f32 = result.model.layer.weight.val().into_scalar();
    println!("rank {}: weight {weight}", world.rank());
    if world.is_main() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(())
}
// ANCHOR_END: all
