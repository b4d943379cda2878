//! Gradients that are made smaller for the way, against their definitions and in training.

use bonfire_collective::TransportKind;
use half::f16;

use super::*;
use crate::{GradientCompression, PowerSgdConfig};

mod low_rank;
mod oracle;
mod resume;
mod sixteen_bits;

/// Parameters whose gradients a test chooses.
#[derive(Module, Debug)]
struct Planted {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
    cube: Param<Tensor<3>>,
}

const ROWS: usize = 24;
const COLS: usize = 17;
const LEN: usize = 5;
/// As a matrix, 12 x 35.
const CUBE: [usize; 3] = [12, 5, 7];

impl Planted {
    fn new(device: &Device) -> Self {
        Self {
            matrix: Param::from_tensor(Tensor::zeros([ROWS, COLS], device)),
            vector: Param::from_tensor(Tensor::zeros([LEN], device)),
            cube: Param::from_tensor(Tensor::zeros(CUBE, device)),
        }
    }

    /// A loss that has `gradients` as its gradients.
    fn loss(&self, gradients: &Gradients3) -> Tensor<1> {
        let device = self.matrix.device();
        let tensors = gradients.map_ref(|values| Tensor::<1>::from_floats(&values[..], &device));
        let [matrix, vector, cube] = tensors;
        (self.matrix.val() * matrix.reshape([ROWS, COLS])).sum()
            + (self.vector.val() * vector).sum()
            + (self.cube.val() * cube.reshape(CUBE)).sum()
    }
}

/// The gradients of the three parameters.
#[derive(Clone, Debug, PartialEq)]
struct Gradients3([Vec<f32>; 3]);

impl Gradients3 {
    fn random(seed: u64, magnitude: f32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut values = |len: usize| -> Vec<f32> {
            let value = |_| rng.random_range(-magnitude..magnitude);
            (0..len).map(value).collect()
        };
        Self([values(ROWS * COLS), values(LEN), values(CUBE.iter().product())])
    }

    fn map_ref<'a, T>(&'a self, map: impl Fn(&'a Vec<f32>) -> T) -> [T; 3] {
        let [matrix, vector, cube] = &self.0;
        [map(matrix), map(vector), map(cube)]
    }
}

/// What every rank has after each of `steps` steps, in which rank r's gradients are `gradients(r, step)`.
fn averages(
    ranks: u32,
    compression: GradientCompression,
    steps: usize,
    gradients: impl Fn(usize, usize) -> Gradients3 + Sync,
) -> Vec<Gradients3> {
    let results = on_ranks(ranks, |world| {
        let config = DdpConfig { compression, ..DdpConfig::default() };
        let mut ddp = Ddp::with_config(Planted::new(&world.device()), &world, config).unwrap();
        let mut step = |step| {
            let own = gradients(world.rank().index(), step);
            let found = ddp.backward(|model| model.loss(&own)).unwrap().gradients;
            let values = gradient_values(ddp.module(), &found).into_iter().flatten();
            let values: Vec<Vec<f32>> = values.collect();
            Gradients3(values.try_into().unwrap())
        };
        (0..steps).map(&mut step).collect::<Vec<Gradients3>>()
    });
    let bits = |steps: &Vec<Gradients3>| -> Vec<u32> {
        let values = steps.iter().flat_map(|step| step.0.iter().flatten());
        values.map(|value| value.to_bits()).collect()
    };
    assert_same(&results.iter().map(bits).collect::<Vec<_>>());
    results.into_iter().next().unwrap()
}

fn power_sgd(rank: usize) -> PowerSgdConfig {
    // Small matrices gain little.
    let config = PowerSgdConfig::default().with_compression_rate_min(0.5);
    config.with_rank(rank).with_start_step(0)
}

fn compressed(compression: GradientCompression) -> DdpConfig {
    DdpConfig { compression, ..small_buckets() }
}

/// The mean loss over the first 32 samples.
fn loss_of(model: &Mlp) -> f64 {
    let indices: Vec<usize> = (0..32).collect();
    f64::from(model.loss(&indices).into_scalar::<f32>())
}

/// The loss before and after training on 32 samples, the same in every epoch.
fn fitted(world: &World, config: DdpConfig, steps: usize) -> (f64, f64, Bits) {
    let indices = share(world, 0, 32 / world.world_size().len());
    let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), world, config).unwrap();
    let before = loss_of(ddp.module());
    for _ in 0..steps {
        descend(&mut ddp, 0.2, |model| model.loss(&indices));
    }
    (before, loss_of(ddp.module()), bits(ddp.module()))
}

/// What a compressed training reaches may be a tenth of the way behind the uncompressed one.
#[test]
fn every_compression_learns_what_no_compression_learns() {
    let steps = 400;
    let plain = on_ranks(2, |world| fitted(&world, small_buckets(), steps)).remove(0);
    let (before, after, _) = plain;
    assert!(after < 0.75 * before, "{before} to {after}");
    for compression in [
        GradientCompression::Fp16,
        GradientCompression::Bf16,
        GradientCompression::PowerSgd(power_sgd(1)),
        GradientCompression::PowerSgd(power_sgd(2)),
    ] {
        let fits = on_ranks(2, |world| fitted(&world, compressed(compression), steps));
        let (_, found, bits) = one_of(fits);
        let behind = (found - after) / (before - after);
        assert!(behind < 0.1, "{compression:?}: {before} to {found}, not {after}");
        assert_ne!(bits, plain.2, "{compression:?} changes something");
    }
}

#[test]
fn a_lone_rank_compresses_nothing() {
    let plain = on_ranks(1, |world| bits(&train(&world, small_buckets(), 4, 4, 0.1)));
    for compression in [GradientCompression::Fp16, GradientCompression::PowerSgd(power_sgd(1))] {
        let config = compressed(compression);
        let found = on_ranks(1, |world| bits(&train(&world, config.clone(), 4, 4, 0.1)));
        assert_eq!(found, plain);
    }
}

#[test]
fn every_transport_and_bucket_size_gives_the_same_bits() {
    for compression in [GradientCompression::Bf16, GradientCompression::PowerSgd(power_sgd(2))] {
        let with =
            |bucket_bytes_max: usize| DdpConfig { bucket_bytes_max, ..compressed(compression) };
        let body = |world: World, config| bits(&train(&world, config, 5, 3, 0.05));
        let reference = on_ranks(3, |world| body(world, with(1024)));
        assert_same(&reference);
        for bytes in [1, 300, 25 << 20] {
            assert!(on_ranks(3, |world| body(world, with(bytes))) == reference);
        }
        for transport in [TransportKind::Shm, TransportKind::Tcp] {
            let options = GroupOptions::default().with_transport(Some(transport));
            let models = connected(3, options, |group| body(world(group), with(1024)));
            assert!(models == reference, "{transport} differs from threads");
        }
    }
}
