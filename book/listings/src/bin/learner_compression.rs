//! Burn's learner with compressed gradients, which goes on where it was. Arguments: a folder, the epoch to
//! go on from (0 for none), and the last epoch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bonfire::compression::GradientCompression;
use bonfire::compression::PowerSgdConfig;
use bonfire::data::{DatasetLoader, Order};
use bonfire::learner::{
    CompressionCheckpoints, DistributedTraining, LearnerConfig, Outputs, StepTimings,
};
use bonfire::prelude::*;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor};
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::metric::LossMetric;
use burn_train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};

/// Learns to turn sixteen numbers around.
#[derive(Module, Debug)]
struct Mirror {
    layer: Linear,
}

impl Mirror {
    /// `x` is `[batch, 16]`.
    fn output(&self, x: Tensor<2>) -> RegressionOutput {
        let (output, targets) = (self.layer.forward(x.clone()), x.flip([1]));
        let loss = (output.clone() - targets.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, targets)
    }
}

impl TrainStep for Mirror {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, batch: Tensor<2>) -> TrainOutput<RegressionOutput> {
        let item = self.output(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Mirror {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, batch: Tensor<2>) -> RegressionOutput {
        self.output(batch)
    }
}

/// The numbers of samples.
struct Numbers(usize);

impl Dataset<i64> for Numbers {
    fn get(&self, index: usize) -> Result<i64, DatasetError> {
        Ok(index as i64)
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Sixteen numbers of each sample.
struct Sines;

impl Batcher<i64, Tensor<2>> for Sines {
    fn batch(&self, samples: Vec<i64>, device: &Device) -> Tensor<2> {
        let starts = Tensor::<1, Int>::from_ints(samples.as_slice(), device).unsqueeze_dim(1);
        let places = Tensor::<1, Int>::arange(0..16, device).unsqueeze_dim(0);
        ((starts * 16 + places).float() * 1.7).sin()
    }
}

fn loader(world: &World, samples: usize, order: Order) -> Arc<DatasetLoader<i64, Tensor<2>>> {
    Arc::new(DatasetLoader::new(world, Numbers(samples), Sines, 8).with_order(order))
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(|world| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut arguments = std::env::args().skip(1);
        let mut next = || arguments.next().ok_or("FOLDER FROM LAST");
        let (folder, from, last) = (PathBuf::from(next()?), next()?.parse()?, next()?.parse()?);
        train(&world, &folder, from, last)
    })
}

// ANCHOR: train
fn train(
    world: &World,
    folder: &Path,
    from: usize, // an epoch that was saved, or 0
    last: usize,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let compression = GradientCompression::PowerSgd(PowerSgdConfig::default().with_start_step(10));
    let config = DdpConfig::default().with_compression(compression);
    let kept = CompressionCheckpoints::new(folder.join("compression"));
    let timings = StepTimings::new();
    let train = loader(world, 200, Order::Shuffled { seed: 1 });
    let valid = loader(world, 20, Order::Sequential);
    let mut training = SupervisedTraining::new(folder, train, valid)
        .metrics((LossMetric::new(),))
        .metric_train_numeric(timings.exposed_communication())
        .with_default_checkpointers()
        .with_checkpointing_strategy(kept.follow(KeepLastNCheckpoints::new(2)))
        .num_epochs(last);
    if from > 0 {
        training = training.checkpoint(from);
    }
    let config = LearnerConfig::from(config)
        .with_compression_checkpoints(&kept)
        .with_outputs(Outputs::Validation)
        .with_timings(&timings);
    world.seed_step(1, 0); // the same first parameters in every run
    let model = Mirror { layer: LinearConfig::new(16, 16).init(&world.device().autodiff()) };
    let optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let result =
        training.distributed_with(world, config).launch(Learner::new(model, optimizer, 0.02));
    // ANCHOR_END: train
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    drop(result.renderer);
    let sum: f32 = result.model.layer.weight.val().powi_scalar(2).sum().into_scalar();
    println!("rank {} of {} steps: {:08x}", world.rank(), timings.steps(), sum.to_bits());
    Ok(())
}
