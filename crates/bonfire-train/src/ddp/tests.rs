//! Replicas on threads, compared with each other and with training on one rank.

use bonfire_collective::{CollectiveError, GroupOptions};
use bonfire_testkit::{assert_each_says, connected};
use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::world::tests::{on_ranks, world};
use crate::{Clip, Loss};
use per_parameter::{Averager, Averaging};

mod accumulation;
mod alone;
mod buffers;
#[cfg(feature = "cuda")]
mod calls;
mod change;
mod compression;
#[cfg(feature = "cuda")]
mod cuda;
mod device_route;
mod digest;
mod equality;
mod failure;
mod files;
mod foreign;
mod gather;
mod gradients;
mod mesh;
mod norm;
mod overlap;
mod per_parameter;
mod placement;
mod precision;
mod recompute;
mod several_devices;
mod shared;
mod split;
mod unused;
#[cfg(feature = "wgpu")]
mod wgpu;

const INPUTS: usize = 8;
const HIDDEN: usize = 16;
const OUTPUTS: usize = 4;

/// Three layers.
#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
    third: Linear,
}

impl Mlp {
    /// The same values for the same seed.
    fn new(seed: u64, device: &Device) -> Self {
        let model = Self {
            first: LinearConfig::new(INPUTS, HIDDEN).init(device),
            second: LinearConfig::new(HIDDEN, HIDDEN).init(device),
            third: LinearConfig::new(HIDDEN, OUTPUTS).init(device),
        };
        seeded(model, seed)
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = activation::tanh(self.first.forward(x));
        let x = activation::tanh(self.second.forward(x));
        self.third.forward(x)
    }

    /// The mean squared error over the samples `indices`.
    fn loss(&self, indices: &[usize]) -> Tensor<1> {
        let (x, y) = samples(indices, &self.first.weight.device());
        (self.forward(x) - y).powi_scalar(2).mean()
    }
}

/// A model with uniform values below 1 / sqrt(HIDDEN), which depend on the seed only.
fn seeded<M: Module>(model: M, seed: u64) -> M {
    struct Seeder(ChaCha8Rng);
    impl ModuleMapper for Seeder {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let data = random_data(&mut self.0, &tensor.dims());
            let scaled = Tensor::from_data(data, &tensor.device()) / (HIDDEN as f32).sqrt();
            let trainable = tensor.is_require_grad();
            let param = Param::from_mapped_value(id, scaled, mapper);
            if trainable { param.set_require_grad(true) } else { param }
        }
    }
    model.map(&mut Seeder(ChaCha8Rng::seed_from_u64(seed)))
}

/// A model with parameters of another type.
fn cast<M: Module>(model: M, dtype: DType) -> M {
    struct Cast(DType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.cast(self.0))
        }
    }
    model.map(&mut Cast(dtype))
}

/// Uniform values between -1 and 1.
fn random_data(rng: &mut ChaCha8Rng, shape: &[usize]) -> TensorData {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
    TensorData::new(values, shape)
}

/// Inputs and targets, the same for the same indices.
fn samples(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let rows = |width: usize, stream: u64| {
        let rows = indices.iter().map(|&index| {
            let mut rng = ChaCha8Rng::seed_from_u64(index as u64);
            rng.set_stream(stream);
            Tensor::<2>::from_data(random_data(&mut rng, &[1, width]), device)
        });
        Tensor::cat(rows.collect(), 0)
    };
    (rows(INPUTS, 0), rows(OUTPUTS, 1))
}

/// The bits of all parameters, by path.
type Bits = Vec<(String, Vec<u64>)>;

fn bits<M: Module>(model: &M) -> Bits {
    named_values(model)
        .into_iter()
        .map(|(name, values)| (name, values.into_iter().map(f64::to_bits).collect()))
        .collect()
}

/// All parameters, by path.
fn named_values<M: Module>(model: &M) -> Vec<(String, Vec<f64>)> {
    #[derive(Default)]
    struct Reader(crate::parameters::ModulePath, Vec<(String, Vec<f64>)>);
    impl ModuleVisitor for Reader {
        crate::parameters::follow_path!(0);
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().into_data().convert::<f64>().try_to_vec().unwrap();
            self.1.push((self.0.to_string(), values));
        }
    }
    let mut reader = Reader::default();
    model.visit(&mut reader);
    reader.1
}

/// The gradients of a model's parameters, none where there is none.
fn gradient_values<M: Module>(model: &M, gradients: &impl Find) -> Vec<Option<Vec<f32>>> {
    struct Reader<'a, G>(&'a G, Vec<Option<Vec<f32>>>);
    impl<G: Find> ModuleVisitor for Reader<'_, G> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.find(param).map(Tensor::into_data);
            self.1.push(gradient.map(|data| data.convert::<f32>().try_to_vec().unwrap()));
        }
    }
    let mut reader = Reader(gradients, Vec::new());
    model.visit(&mut reader);
    reader.1
}

/// Gradients of Burn's or ours.
trait Find {
    fn find<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>>;
}

impl Find for GradientsParams {
    fn find<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.get(param.id)
    }
}

impl Find for Gradients {
    fn find<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.get(param)
    }
}

/// Buckets so small that several are under way.
fn small_buckets() -> DdpConfig {
    DdpConfig { bucket_bytes_max: 1024, first_bucket_bytes_max: 128, ..DdpConfig::default() }
}

/// That the ranks have different parts of some parameter, if the placement shards anything among several.
fn assert_cut<M: Module>(ddp: &Ddp<M>) {
    let is_cut = (0..ddp.table.len()).any(|parameter| ddp.shards.is_cut(parameter));
    let is_sharded = ddp.config.placement.is_sharded();
    let among_several = ddp.shards.groups().shards().world_size().get() > 1;
    assert_eq!(is_cut, is_sharded && among_several, "{}", ddp.config.placement);
}

fn has_bucket_memory(ddp: &Ddp<Mlp>) -> bool {
    ddp.reducer.lock().is_made()
}

/// This rank's part of the samples of a step: `batch` of them.
fn share(world: &World, step: usize, batch: usize) -> Vec<usize> {
    let all = world.world_size().len() * batch;
    let start = step * all + world.rank().index() * batch;
    (start..start + batch).collect()
}

#[track_caller]
fn assert_same<T: PartialEq + std::fmt::Debug>(results: &[T]) {
    for (rank, result) in results.iter().enumerate() {
        assert!(*result == results[0], "rank {rank} differs from rank 0");
    }
}

/// What all ranks have.
#[track_caller]
fn one_of<T: PartialEq + std::fmt::Debug>(mut results: Vec<T>) -> T {
    assert_same(&results);
    results.remove(0)
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Takes a step of plain gradient descent.
fn descend<M: Module, L: IntoLoss>(ddp: &mut Ddp<M>, lr: f64, forward: impl FnOnce(&M) -> L) {
    take_step(ddp, &mut sgd(), lr, forward);
}

fn take_step<M: Module, L: IntoLoss>(
    ddp: &mut Ddp<M>,
    optimizer: &mut ModuleOptimizer,
    lr: f64,
    forward: impl FnOnce(&M) -> L,
) {
    let gradients = ddp.backward(forward).unwrap().gradients;
    ddp.step(optimizer, lr, gradients).unwrap();
}

/// How far apart the parameters of two runs may be that average the same gradients in another order.
///
/// A gradient is the mean of the gradients of its samples, each computed by sums over the widths of
/// the layers. The two runs associate at most `terms` additions differently; by Higham (Accuracy and
/// Stability of Numerical Algorithms, 3.1) each run is off by at most `gamma = terms u / (1 - terms
/// u)` times the mean magnitude of what it adds, which is at most `magnitude`, the largest gradient
/// of any sample, to first order. Each of `steps` steps adds `lr` times that for either run. What a
/// step inherits it passes on times at most `1 + lr L`, where L bounds the curvature; for the small
/// model here `steps lr L` is below 1, hence the factor e.
fn tolerance(steps: usize, lr: f64, terms: usize, magnitude: f64) -> f64 {
    let u = f64::from(f32::EPSILON) / 2.0;
    let gamma = terms as f64 * u / (1.0 - terms as f64 * u);
    2.0 * steps as f64 * lr * gamma * magnitude * std::f64::consts::E
}

/// Additions in the longest sums of a step with `samples` samples: over the samples, and over the
/// width of each layer, forwards and backwards.
fn terms(samples: usize) -> usize {
    samples + 2 * (INPUTS + HIDDEN + HIDDEN + OUTPUTS)
}

/// The largest gradient of any of the first `count` samples, before training.
fn largest_sample_gradient(count: usize) -> f64 {
    let model = Mlp::new(1, &Device::flex()).train();
    let largest = (0..count).map(|index| {
        let gradients = GradientsParams::from_grads(model.loss(&[index]).backward(), &model);
        let values = gradient_values(&model, &gradients).into_iter().flatten().flatten();
        values.fold(0.0, |largest: f32, value| largest.max(value.abs()))
    });
    f64::from(largest.fold(0.0, f32::max))
}

/// Values are as close as `tolerance` allows, which is a small part of what they are.
fn assert_close(left: &[(String, Vec<f64>)], right: &[(String, Vec<f64>)], tolerance: f64) {
    assert_eq!(left.len(), right.len());
    let values = left.iter().flat_map(|(_, values)| values);
    let largest = values.fold(0.0, |largest: f64, value| largest.max(value.abs()));
    assert!(tolerance < largest / 1000.0, "{tolerance} would hide errors in {largest}");
    for ((name, left), (_, right)) in left.iter().zip(right) {
        assert_eq!(left.len(), right.len(), "{name}");
        for (left, right) in left.iter().zip(right) {
            let apart = (left - right).abs();
            assert!(apart <= tolerance, "{name}: {left} and {right} differ by {apart}");
        }
    }
}

/// The bits of the norm that a rank clips by where its device does not compute that of the others.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn norm_of_a_device_of_its_own(world: &World) -> u32 {
    let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), world, small_buckets()).unwrap();
    let step = ddp.backward(|model| model.loss(&[1, 2])).unwrap();
    let gradients = step.gradients.scaled(1.0 + f64::from(world.rank().get()));
    let norm = gradients.norm().unwrap().unwrap();
    norm.into_scalar::<f32>().to_bits()
}

/// Trains with plain gradient descent, `batch` samples per rank and step.
fn train(
    world: &World,
    averaging: impl Into<Averaging>,
    steps: usize,
    batch: usize,
    lr: f64,
) -> Mlp {
    let mut ddp = Averager::new(Mlp::new(1, &world.device()), world, averaging);
    for step in 0..steps {
        let indices = share(world, step, batch);
        let gradients = ddp.backward(|model| model.loss(&indices)).unwrap().gradients;
        ddp.step(&mut sgd(), lr, gradients).unwrap();
    }
    ddp.into_module()
}

/// Trains with equal and unequal micro-batches, layers that not every batch uses, and one tensor that is the
/// gradient of two parameters: what Burn gives for `a + b`.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn train_unevenly(world: &World, averaging: impl Into<Averaging>) -> Averager<Mlp> {
    let mut ddp = Averager::new(Mlp::new(1, &world.device()), world, averaging);
    let bias = |layer: &Linear| layer.bias.as_ref().expect("it has one").val();
    for step in 0..4 {
        let indices = share(world, step, 2 + world.rank().index());
        let loss = |model: &Mlp| {
            let used = match step % 2 {
                0 => model.loss(&indices),
                _ => {
                    let [one, other] = [&model.first, &model.second].map(bias);
                    (one + other).powi_scalar(2).mean() * indices[0] as f32
                }
            };
            Loss::mean_over(used, indices.len())
        };
        if step > 1 {
            ddp.no_sync(loss).unwrap();
        }
        let gradients = ddp.backward(loss).unwrap().gradients;
        ddp.step(&mut sgd(), 0.05, gradients).unwrap();
    }
    ddp
}
