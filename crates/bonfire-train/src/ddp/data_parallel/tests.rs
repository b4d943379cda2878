//! Replicas in one process, compared with one device.

use std::sync::{Barrier, Mutex};
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Distribution, Int, activation};

use super::*;
use crate::Loss;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

const WIDTH: usize = 8;

impl Mlp {
    fn new() -> Self {
        let device = Device::flex();
        Self {
            first: LinearConfig::new(WIDTH, WIDTH).init(&device),
            second: LinearConfig::new(WIDTH, 1).init(&device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = activation::tanh(self.first.forward(x));
        self.second.forward(hidden)
    }

    fn loss(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        (self.forward(x) - y).powi_scalar(2).mean()
    }

    fn values(&self) -> Vec<f32> {
        let layers = [&self.first, &self.second];
        let tensors = layers.map(|layer| layer.weight.val().into_data());
        let values = tensors.map(|data| data.try_to_vec::<f32>().unwrap());
        values.concat()
    }
}

fn batch(samples: usize) -> (Tensor<2>, Tensor<2>) {
    let device = Device::flex();
    let uniform = Distribution::Uniform(-1.0, 1.0);
    let x = Tensor::random([samples, WIDTH], uniform, &device);
    let y = x.clone().sum_dim(1);
    (x, y)
}

/// The parameters after some steps on one batch.
fn trained(model: &Mlp, batch: &(Tensor<2>, Tensor<2>), replicas: usize) -> Vec<f32> {
    let mut parallel = DataParallel::new(model.clone(), vec![Device::flex(); replicas]);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..STEPS {
        let gradients = parallel.backward(batch, Mlp::loss).unwrap();
        parallel.step(&mut optimizer, RATE, gradients);
    }
    parallel.module().values()
}

const STEPS: usize = 5;
const RATE: f64 = 0.1;

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Both are sums over `samples` samples and two widths, of numbers below 1, in another order.
fn assert_close(found: &[f32], expected: &[f32], samples: usize, what: &str) {
    let tolerance = 2.0 * (samples + 2 * WIDTH) as f32 * f32::EPSILON;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance, "{what}: {found} and {expected}");
    }
}

/// The gradient of every parameter.
fn gradients_of(model: &Mlp, gradients: &GradientsParams) -> Vec<f32> {
    let weights = [&model.first, &model.second].map(|layer| layer.weight.id);
    let weights = weights.map(|id| numbers(gradients.get::<2>(id).unwrap()));
    let biases = [&model.first, &model.second].map(|layer| layer.bias.as_ref().unwrap().id);
    let biases = biases.map(|id| numbers(gradients.get::<1>(id).unwrap()));
    [weights.concat(), biases.concat()].concat()
}

/// Devices that are more than the samples, too.
const REPLICAS: [usize; 5] = [1, 2, 3, 11, 16];

#[test]
fn a_body_made_without_autodiff_trains_with_its_head() {
    let model =
        Mlp { second: LinearConfig::new(WIDTH, 1).init(&Device::flex().autodiff()), ..Mlp::new() };
    let before = model.values();
    let after = trained(&model, &batch(11), 2);
    let still = before.iter().zip(&after).filter(|(a, b)| a == b).count();
    assert_eq!(still, 0, "of {} numbers", before.len());
}

#[test]
fn any_number_of_replicas_trains_like_one_device() {
    let (model, batch) = (Mlp::new(), batch(11));
    let mut alone = model.clone().train();
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..STEPS {
        let gradients = alone.loss(batch.clone()).backward();
        let gradients = GradientsParams::from_grads(gradients, &alone);
        alone = optimizer.step(RATE, alone, gradients);
    }
    let expected = alone.values();
    assert_eq!(trained(&model, &batch, 1), expected, "one replica: the same bits");
    for replicas in [2, 3, 11, 16] {
        let values = trained(&model, &batch, replicas);
        // Sums over 11 samples and two widths in another order, in each step; values are below 1.
        let terms = (11 + 2 * WIDTH) as f32;
        let tolerance = 2.0 * STEPS as f32 * terms * f32::EPSILON;
        for (value, expected) in values.iter().zip(&expected) {
            let apart = (value - expected).abs();
            assert!(apart <= tolerance, "{replicas}: {value} and {expected}");
        }
    }
    assert_ne!(model.values(), expected, "it trains at all");
}

#[test]
fn batches_are_divided_as_torch_chunk_divides_them() {
    assert_eq!(divided(11, 4), [0..3, 3..6, 6..9, 9..11]);
    assert_eq!(divided(5, 4), [0..2, 2..4, 4..5]);
    assert_eq!(divided(2, 4), [0..1, 1..2]);
    assert!(divided(0, 4).is_empty());
}

#[test]
fn the_loss_is_the_mean_over_the_batch() {
    let (model, batch) = (Mlp::new(), batch(7));
    let mut parallel = DataParallel::new(model.clone(), vec![Device::flex(); 2]);
    parallel.backward(&batch, Mlp::loss).unwrap();
    let loss: f32 = parallel.last_loss().unwrap().into_scalar();
    let expected: f32 = model.loss(batch).into_scalar();
    assert!((loss - expected).abs() <= 16.0 * f32::EPSILON * expected);
}

#[test]
fn weights_of_the_program_count() {
    // The second part says that it has no samples.
    let (model, batch) = (Mlp::new(), batch(4));
    let weighted = |first: usize, second: usize| {
        let mut parallel = DataParallel::new(model.clone(), vec![Device::flex(); 2]);
        let start: f32 = batch.0.clone().slice([0..1, 0..1]).into_scalar();
        let gradients = parallel.backward(&batch, |model: &Mlp, part: (Tensor<2>, Tensor<2>)| {
            let own: f32 = part.0.clone().slice([0..1, 0..1]).into_scalar();
            let samples = if own == start { first } else { second };
            Loss::mean_over(model.loss(part), samples)
        });
        let id = parallel.module().second.weight.id;
        let gradient = gradients.map(|gradients| gradients.get::<2>(id).unwrap());
        gradient.map(|gradient| gradient.into_data().try_to_vec::<f32>().unwrap())
    };
    assert_eq!(weighted(2, 0).unwrap(), weighted(1, 0).unwrap());
    assert_ne!(weighted(2, 0).unwrap(), weighted(2, 2).unwrap());
    assert!(matches!(weighted(0, 0), Err(TrainError::NoSamples)));
}

#[test]
fn an_error_of_one_replica_is_the_result() {
    let mut parallel = DataParallel::new(Mlp::new(), vec![Device::flex(); 2]);
    let failing = |model: &Mlp, part: (Tensor<2>, Tensor<2>)| {
        // The second of 3 parts is smaller.
        match part.samples(0) {
            1 => Err("no"),
            _ => Ok(model.loss(part)),
        }
    };
    let result = parallel.backward(&batch(3), failing);
    assert!(matches!(result, Err(TrainError::Forward(_))));
}

/// What a layer with a momentum of a half has learned from two batches, and from two more.
fn running_means<M: Module>(layer: M, learn: fn(&M, Tensor<2>), mean: fn(&M) -> Tensor<1>) {
    let mut parallel = DataParallel::new(layer, vec![Device::flex(); 2]);
    // The mean of the first part is `mean`.
    let batch = |mean: f32| {
        let rows = [mean - 1.0, mean + 1.0, 10.0, 20.0];
        Tensor::<1>::from_floats(rows, &Device::flex()).reshape([4, 1])
    };
    let found = |parallel: &DataParallel<M>| numbers(mean(&parallel.module().valid()));
    for mean in [2.0, 6.0] {
        let run = |layer: &M, x: Tensor<2>| {
            learn(layer, x.clone().autodiff());
            x
        };
        let _output = parallel.forward(&batch(mean), run).unwrap();
    }
    // Of 0 and 2 is 1, of 1 and 6 is 3.5, and so on.
    assert_eq!(found(&parallel), [3.5]);
    for mean in [4.5, 8.0] {
        let run = |layer: &M, x: Tensor<2>| {
            learn(layer, x.clone().autodiff());
            x.mean()
        };
        let _gradients = parallel.backward(&batch(mean), run).unwrap();
    }
    assert_eq!(found(&parallel), [6.0]);
}

#[test]
fn running_statistics_are_those_of_the_first_part() {
    let device = Device::flex();
    let config = crate::BatchNormConfig::new(1).with_momentum(0.5);
    running_means(
        config.init(&device),
        |layer, x| drop(layer.forward(x)),
        |layer| layer.running_mean.value(),
    );
    let config = burn::nn::BatchNormConfig::new(1).with_momentum(0.5);
    running_means(
        config.init(&device),
        |layer, x| drop(layer.forward(x)),
        |layer| layer.running_mean.value(),
    );
}

#[test]
fn outputs_are_those_of_one_device_in_their_order() {
    let (model, (x, _)) = (Mlp::new(), batch(11));
    let expected = numbers(model.forward(x.clone()));
    for replicas in REPLICAS {
        let parallel = DataParallel::new(model.clone(), vec![Device::flex(); replicas]);
        let parts = Mutex::new(Vec::new());
        let forward = |model: &Mlp, x: Tensor<2>| {
            parts.lock().unwrap().push(x.dims()[0]);
            model.forward(x)
        };
        let output = parallel.forward(&x, forward).unwrap();
        assert_eq!(output.dims(), [11, 1]);
        assert_close(&numbers(output), &expected, 0, &format!("{replicas}"));
        let mut parts = parts.into_inner().unwrap();
        parts.sort_unstable();
        let mut lengths: Vec<usize> =
            divided(11, replicas).into_iter().map(|part| part.len()).collect();
        lengths.sort_unstable();
        assert_eq!(parts, lengths);
    }
}

#[test]
fn batches_are_divided_and_outputs_gathered_along_another_dimension() {
    let (model, (x, y)) = (Mlp::new(), batch(7));
    let expected = numbers(model.forward(x.clone()));
    let mut parallel = DataParallel::new(model.clone(), vec![Device::flex(); 3]).with_dim(1);
    let columns = x.clone().transpose();
    let forward = |model: &Mlp, x: Tensor<2>| {
        assert!([3, 1].contains(&x.dims()[1]) && x.dims()[0] == WIDTH);
        model.forward(x.transpose()).transpose()
    };
    let output = parallel.forward(&columns, forward).unwrap();
    assert_eq!(output.dims(), [1, 7]);
    assert_close(&numbers(output), &expected, 0, "forward");
    let batch = (columns, y.clone().transpose());
    let loss =
        |model: &Mlp, (x, y): (Tensor<2>, Tensor<2>)| model.loss((x.transpose(), y.transpose()));
    let gradients = parallel.backward(&batch, loss).unwrap();
    let alone = model.train();
    let expected = GradientsParams::from_grads(alone.loss((x, y)).backward(), &alone);
    let [found, expected] = [&gradients, &expected].map(|found| gradients_of(&alone, found));
    assert_close(&found, &expected, 7, "backward");
}

#[test]
#[should_panic(expected = "a tensor of 2 dimensions has no dimension 2")]
fn a_dimension_that_a_batch_has_not_is_a_panic() {
    let parallel = DataParallel::new(Mlp::new(), vec![Device::flex(); 2]).with_dim(2);
    let _output = parallel.forward(&batch(4).0, Mlp::forward);
}

#[test]
#[should_panic(expected = "a tensor of 1 dimensions has no dimension 1")]
fn a_dimension_that_an_output_has_not_is_a_panic() {
    let parallel = DataParallel::new(Mlp::new(), vec![Device::flex(); 2]).with_dim(1);
    let _output = parallel.forward(&batch(4).0, |model, _| model.first.weight.val().mean());
}

/// What one device has for the whole batch.
fn gradients_alone(model: &Mlp, batch: (Tensor<2>, Tensor<2>)) -> Vec<f32> {
    let alone = model.clone().train();
    let loss = alone.loss(batch);
    gradients_of(&alone, &GradientsParams::from_grads(loss.backward(), &alone))
}

#[test]
fn a_loss_of_the_gathered_output_has_the_gradients_of_one_device() {
    let (model, (x, y)) = (Mlp::new(), batch(11));
    let expected = gradients_alone(&model, (x.clone(), y.clone()));
    for replicas in REPLICAS {
        let parallel = DataParallel::new(model.clone(), vec![Device::flex(); replicas]);
        // Again without a step in between, as gradients of several batches are added up.
        for _ in 0..2 {
            let output = parallel.forward(&x, Mlp::forward).unwrap();
            let loss = (output - y.clone()).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), parallel.module());
            let found = gradients_of(parallel.module(), &gradients);
            assert_close(&found, &expected, 11, &format!("{replicas} replicas"));
        }
    }
    let largest = expected.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    assert!(largest > 0.01, "{largest}: the tolerance would hide errors");
}

/// As a discriminator's gradient reaches the generator. Threads add to one graph, in many orders.
#[test]
fn gradients_reach_what_the_batch_comes_from() {
    let (model, (x, y)) = (Mlp::new().train(), batch(8));
    let before = LinearConfig::new(WIDTH, WIDTH).init(&Device::flex().autodiff());
    let loss = |output: Tensor<2>| (output - y.clone()).powi_scalar(2).mean().backward();
    let weight =
        |gradients: &burn::tensor::Gradients| numbers(before.weight.val().grad(gradients).unwrap());
    let expected = weight(&loss(model.forward(before.forward(x.clone()))));
    let parallel = DataParallel::new(model, vec![Device::flex(); 4]);
    for round in 0..100 {
        let output = parallel.forward(&before.forward(x.clone()), Mlp::forward);
        let found = weight(&loss(output.unwrap()));
        assert_close(&found, &expected, 8, &format!("round {round}"));
    }
}

/// Each parameter begins with a graph of its own, and each thread's pass leads through all of them, at the same time.
#[test]
fn threads_whose_passes_join_many_graphs_lose_nothing() {
    let _watchdog = bonfire_testkit::Watchdog::start("graphs", Duration::from_secs(200));
    let device = Device::flex();
    let layer = |_| LinearConfig::new(2, 2).init(&device);
    let layers: Vec<Linear> = (0..64).map(layer).collect();
    let x = Tensor::<2>::ones([THREADS, 2], &device);
    for _ in 0..60 {
        let parallel = DataParallel::new(layers.clone(), vec![device.clone(); THREADS]);
        let start = Barrier::new(THREADS);
        let forward = |layers: &Vec<Linear>, x: Tensor<2>| {
            start.wait();
            layers.iter().fold(x, |x, layer| layer.forward(x))
        };
        let output = parallel.forward(&x, forward).unwrap();
        let gradients = output.sum().backward();
        let mut weights = parallel.module().iter().map(|layer| layer.weight.val());
        assert!(weights.all(|weight| weight.grad(&gradients).is_some()));
    }
}

const THREADS: usize = 8;

#[test]
fn training_with_gathered_outputs_is_training_with_the_losses_of_replicas() {
    let (model, batch) = (Mlp::new(), batch(11));
    let mut parallel = DataParallel::new(model.clone(), vec![Device::flex(); 3]);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    for _ in 0..STEPS {
        let output = parallel.forward(&batch.0, Mlp::forward).unwrap();
        let loss = (output - batch.1.clone()).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), parallel.module());
        parallel.step(&mut optimizer, RATE, gradients);
    }
    let expected = trained(&model, &batch, 3);
    assert_ne!(parallel.module().values(), model.values(), "it trains at all");
    assert_close(&parallel.module().values(), &expected, 11 * STEPS, "trained");
}

#[test]
fn outputs_may_be_pairs_and_other_kinds() {
    let (model, (x, _)) = (Mlp::new(), batch(5));
    let parallel = DataParallel::new(model.clone(), vec![Device::flex(); 2]);
    let run = |model: &Mlp, x: Tensor<2>| {
        let output = model.forward(x.clone());
        let positive = output.clone().greater_scalar(0.0);
        ((output, x.argmax(1)), positive)
    };
    let ((output, places), positive) = parallel.forward(&x, run).unwrap();
    assert_close(&numbers(output.clone()), &numbers(model.forward(x.clone())), 0, "pairs");
    let same: Tensor<2, Int> = x.argmax(1);
    assert_eq!(places.into_data(), same.into_data());
    assert_eq!(positive.into_data(), output.greater_scalar(0.0).into_data());
}

#[test]
fn an_inference_has_no_graph() {
    let (x, _) = batch(5);
    let parallel = DataParallel::new(Mlp::new(), vec![Device::flex(); 2]);
    let tracked = parallel.forward(&x, Mlp::forward).unwrap();
    let output = parallel.forward(&x, |model, x| model.valid().forward(x));
    assert!(tracked.is_tracked() && !output.unwrap().is_tracked());
}

#[test]
fn an_empty_batch_has_no_output() {
    let parallel = DataParallel::new(Mlp::new(), vec![Device::flex(); 2]);
    let output = parallel.forward(&Tensor::zeros([0, WIDTH], &Device::flex()), Mlp::forward);
    assert!(matches!(output, Err(TrainError::NoSamples)));
}

/// Half of the batch on the CPU, half on an adapter, which has the output and the loss. Its functions are less exact: 64
/// more roundings allow for that.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_devices_of_two_kinds_share_a_batch() {
    use crate::DeviceKind;
    use crate::world::tests::world_on;

    let options = bonfire_collective::GroupOptions::default();
    let adapter = |group| world_on(group, DeviceKind::Wgpu).map(|world| world.device());
    let mut found = bonfire_testkit::local(1, options, adapter);
    let adapter = match found.remove(0) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let (model, (x, y)) = (Mlp::new(), batch(11));
    let expected = gradients_alone(&model, (x.clone(), y.clone()));
    let devices = vec![Device::flex(), adapter.clone()];
    let mut parallel = DataParallel::new(model, devices).with_output_device(adapter.clone());
    let output = parallel.forward(&x, Mlp::forward).unwrap();
    assert_eq!(output.device().without_autodiff(), adapter);
    let loss = (output - y.clone().to_device(&adapter)).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), parallel.module());
    let found = gradients_of(parallel.module(), &gradients);
    assert_close(&found, &expected, 11 + 64, "forward");
    let gradients = parallel.backward(&(x, y), Mlp::loss).unwrap();
    let found = gradients_of(parallel.module(), &gradients);
    assert_close(&found, &expected, 11 + 64, "backward");
    assert_eq!(parallel.last_loss().unwrap().device(), adapter);
}
