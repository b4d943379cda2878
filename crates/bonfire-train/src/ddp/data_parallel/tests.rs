//! Replicas in one process, compared with one device.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Distribution, activation};

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

    fn loss(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        let hidden = activation::tanh(self.first.forward(x));
        (self.second.forward(hidden) - y).powi_scalar(2).mean()
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

#[test]
fn a_body_made_without_autodiff_trains_with_its_head() {
    let model = Mlp {
        second: LinearConfig::new(WIDTH, 1).init(&Device::flex().autodiff()),
        ..Mlp::new()
    };
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
    assert_eq!(
        trained(&model, &batch, 1),
        expected,
        "one replica: the same bits"
    );
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
        match part.samples() {
            1 => Err("no"),
            _ => Ok(model.loss(part)),
        }
    };
    let result = parallel.backward(&batch(3), failing);
    assert!(matches!(result, Err(TrainError::Forward(_))));
}

#[test]
fn running_statistics_are_those_of_the_first_part() {
    let layer = crate::BatchNormConfig::new(1)
        .with_momentum(1.0)
        .init(&Device::flex());
    let mut parallel = DataParallel::new(layer, vec![Device::flex(); 2]);
    let x = Tensor::<2>::from_floats([[1.0], [3.0], [10.0], [20.0]], &Device::flex());
    let forward =
        |layer: &crate::BatchNorm, x: Tensor<2>| layer.forward(x.autodiff()).square().mean();
    let _gradients = parallel.backward(&x, forward).unwrap();
    let mean = parallel.module().running_mean.value();
    assert_eq!(mean.into_scalar::<f32>(), 2.0);
}
