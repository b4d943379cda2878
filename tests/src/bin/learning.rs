//! A training with Burn's learner on several processes, for the tests of how it ends.
//!
//! `learning FOLDER WHAT`: every rank prints its process id, how many samples it validated in each
//! epoch, and the bits of the parameters as one number. WHAT is `train`; `held`, which begins when there is
//! a file FOLDER/go; `compare`, which trains with a loop of its own, too; `endless`, which saves each epoch
//! and is stopped from outside, after each rank has left its process id in FOLDER/RANK.pid; or what goes
//! wrong on rank 1: `torn` data, a `panic`, or a `worse` metric from the third epoch on, which stops the
//! training early.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bonfire::collective::Rank;
use bonfire::data::{DatasetLoader, DistributedSampler, Loader, Order, Remainder};
use bonfire::ddp::Loss;
use bonfire::learner::DistributedTraining;
use bonfire::{Ddp, World};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::metric::LossMetric;
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::{
    InferenceStep, Learner, LearningResult, MetricEarlyStoppingStrategy, RegressionOutput,
    StoppingCondition, SupervisedTraining, TrainOutput, TrainStep,
};

const SAMPLES: usize = 37;
const VALID_SAMPLES: usize = 11;
const EPOCHS: usize = 6;
/// More than any test waits for.
const ENDLESS_EPOCHS: usize = 1_000_000;
const BATCH: usize = 4;
const RATE: f64 = 0.01;
const ORDER: Order = Order::Shuffled { seed: 9 };

/// Two layers.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(1, 8).init(device),
            second: LinearConfig::new(8, 1).init(device),
        }
    }

    fn regression(&self, (x, y): Points) -> RegressionOutput {
        let output = self.second.forward(self.first.forward(x).tanh());
        let loss = (output.clone() - y.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, y)
    }

    /// The bits of all parameters, as one number.
    fn digest(&self) -> u64 {
        let layers = [&self.first, &self.second];
        let tensors = layers.map(|layer| {
            let bias = layer.bias.as_ref().map(|bias| bias.val().into_data());
            [Some(layer.weight.val().into_data()), bias]
        });
        let data = tensors.into_iter().flatten().flatten();
        let bytes = data.flat_map(|data| data.as_bytes().to_vec());
        // FNV-1a.
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Inputs and targets.
type Points = (Tensor<2>, Tensor<2>);

impl TrainStep for Net {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let item = self.regression(points);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Points;
    type Output = RegressionOutput;

    fn step(&self, points: Points) -> RegressionOutput {
        self.regression(points)
    }
}

/// Numbers, which may be unreadable from one on.
struct Numbers {
    len: usize,
    readable: usize,
    /// There are none before this file.
    after: Option<PathBuf>,
}

impl Dataset<usize> for Numbers {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        while self.after.as_ref().is_some_and(|file| !file.exists()) {
            thread::sleep(Duration::from_millis(5));
        }
        if index < self.readable {
            return Ok(index);
        }
        let error = std::io::Error::other(format!("sample {index} is torn"));
        Err(DatasetError::new(error))
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Makes points; counts the samples.
#[derive(Clone, Default)]
struct ToPoints {
    counted: Arc<AtomicUsize>,
    /// Panics at this sample.
    panic_at: Option<usize>,
    /// Has wrong targets from this sample on.
    worse_from: Option<usize>,
}

impl Batcher<usize, Points> for ToPoints {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Points {
        let counted = self.counted.fetch_add(items.len(), Ordering::Relaxed);
        let reached = |limit: Option<usize>| limit.is_some_and(|limit| counted >= limit);
        assert!(!reached(self.panic_at), "no point after {counted} samples");
        let (x, y) = points(&items, device);
        if reached(self.worse_from) {
            return (x, y + 1e6);
        }
        (x, y)
    }
}

fn points(items: &[usize], device: &Device) -> Points {
    let points: Vec<f32> = items.iter().map(|item| *item as f32 / 7.0).collect();
    let x = Tensor::<1>::from_floats(points.as_slice(), device).unsqueeze_dim::<2>(1);
    (x.clone(), x.sin())
}

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> anyhow::Result<()> {
    println!("pid {}", std::process::id());
    let mut arguments = std::env::args().skip(1);
    let folder: PathBuf = arguments.next().context("the first argument is a folder")?.into();
    let what = arguments.next().context("then what happens")?;
    let unlucky = world.rank() == Rank::new(1);
    let torn = unlucky && what == "torn";
    let trained =
        ToPoints { panic_at: (unlucky && what == "panic").then_some(20), ..ToPoints::default() };
    let sampler = DistributedSampler::new(&world, VALID_SAMPLES);
    let share = sampler.with_remainder(Remainder::Exact).len();
    let validated = ToPoints {
        worse_from: (unlucky && what == "worse").then_some(2 * share),
        ..ToPoints::default()
    };
    let numbers = Numbers {
        len: SAMPLES,
        readable: if torn { SAMPLES / 2 } else { SAMPLES },
        after: (what == "held").then(|| folder.join("go")),
    };
    let train = loader(&world, numbers, trained, ORDER);
    let numbers = Numbers { len: VALID_SAMPLES, readable: VALID_SAMPLES, after: None };
    let valid = loader(&world, numbers, validated.clone(), Order::Sequential);

    let device = world.device().autodiff();
    world.seed_step(0, 0);
    let model = Net::new(&device);
    let optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let learner = Learner::new(model.clone(), optimizer, RATE);
    let mut training = SupervisedTraining::new(&folder, train, valid)
        .metrics((LossMetric::new(),))
        .num_epochs(EPOCHS);
    if what == "endless" {
        let file = folder.join(format!("{}.pid", world.rank()));
        std::fs::write(file, std::process::id().to_string())?;
        training = training
            .num_epochs(ENDLESS_EPOCHS)
            .with_default_checkpointers()
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(1));
    }
    if what == "worse" {
        training = training.early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs: 1 },
        ));
    }
    let LearningResult { model: learned, renderer, interrupted, error } =
        training.distributed(&world).launch(learner);
    // A display would hide what comes.
    drop(renderer);
    if let Some(error) = error {
        return Err(anyhow::anyhow!("{error}"));
    }
    if let Some(interruption) = interrupted {
        println!("interrupted: {}", interruption.reason.unwrap_or_default());
    }
    println!("validated {}", validated.counted.load(Ordering::Relaxed));
    println!("parameters {:016x}", learned.digest());
    if what == "compare" {
        println!("loop {:016x}", own_loop(model, &world)?.digest());
    }
    Ok(())
}

fn loader(
    world: &World,
    numbers: Numbers,
    batcher: ToPoints,
    order: Order,
) -> Arc<DatasetLoader<usize, Points>> {
    let loader = DatasetLoader::new(world, numbers, batcher, BATCH);
    Arc::new(loader.with_order(order).with_remainder(Remainder::Exact))
}

/// The same training without a learner.
fn own_loop(model: Net, world: &World) -> anyhow::Result<Net> {
    let device = world.device();
    let mut ddp = Ddp::new(model, world)?;
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let loader = Loader::new(world, SAMPLES, BATCH).with_order(ORDER);
    let mut loader = loader.with_remainder(Remainder::Exact);
    let share = SAMPLES.div_ceil(world.world_size().len());
    for _ in 0..EPOCHS {
        let mut batches = loader.next_epoch();
        for _ in 0..share.div_ceil(BATCH) {
            let batch = batches.next().unwrap_or_default();
            let loss = |model: &Net| match batch.len() {
                0 => Loss::mean_over(Tensor::zeros([1], &device), 0),
                samples => Loss::mean_over(model.regression(points(&batch, &device)).loss, samples),
            };
            let step = ddp.backward(loss)?;
            ddp.step(&mut optimizer, RATE, step.gradients)?;
        }
    }
    Ok(ddp.into_module())
}
