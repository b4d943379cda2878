//! Ranks whose models lie on several devices, compared with a rank that has everything in one place.
//!
//! A build for the CPU has one device, so there only the moves between layers are real; with the feature `wgpu` there
//! are two of different kinds.

use super::*;
use crate::Placement;

/// Three layers, of which the second is elsewhere; each placement cuts the first and the second.
#[derive(Module, Debug)]
struct Split {
    first: Linear,
    second: Linear,
    third: Linear,
}

const WIDE: usize = 136;

impl Split {
    fn new(devices: &[Device; 2]) -> Self {
        let model = Self {
            first: LinearConfig::new(INPUTS, WIDE).init(&devices[0]),
            second: LinearConfig::new(WIDE, HIDDEN).init(&devices[0]),
            third: LinearConfig::new(HIDDEN, OUTPUTS).init(&devices[0]),
        };
        let model = seeded(model, 1);
        Self { second: model.second.fork(&devices[1]), ..model }
    }

    fn loss(&self, indices: &[usize], devices: &[Device; 2]) -> Tensor<1> {
        let [first, second] = devices;
        let (x, y) = samples(indices, first);
        let x = activation::tanh(self.first.forward(x)).to_device(second);
        let x = activation::tanh(self.second.forward(x)).to_device(first);
        (self.third.forward(x) - y).powi_scalar(2).mean()
    }
}

/// The parameters after some steps of two micro-batches, with a clipping that counts all gradients.
fn trained_over(
    world: &World,
    devices: &[Device; 2],
    config: DdpConfig,
    batch: usize,
) -> Vec<(String, Vec<f64>)> {
    let mut ddp = Ddp::with_config(Split::new(devices), world, config).unwrap();
    assert_cut(&ddp);
    let Split { first, second, third } = ddp.module();
    let places = [first, second, third];
    let places = places.map(|layer| layer.weight.device().without_autodiff());
    assert_eq!(places, [0, 1, 0].map(|place: usize| devices[place].clone()));
    for step in 0..STEPS {
        let indices = share(world, step, batch);
        let (one, other) = indices.split_at(batch / 2);
        ddp.no_sync(|model| model.loss(one, devices)).unwrap();
        let step = ddp.backward(|model| model.loss(other, devices)).unwrap();
        // Far above it, so that the factor is one.
        let gradients = step.gradients.clip(Clip::Norm(1e6)).unwrap();
        gradients.check_finite().unwrap();
        ddp.step(&mut sgd(), RATE, gradients).unwrap();
    }
    ddp.digest().unwrap();
    named_values(&ddp.whole().unwrap())
}

const STEPS: usize = 6;
const RATE: f64 = 0.05;
/// Of all ranks.
const BATCH: usize = 8;

/// On one rank with the whole batch and everything in one place.
fn expected() -> Vec<(String, Vec<f64>)> {
    let devices = [Device::flex(), Device::flex()];
    let alone = |world: World| trained_over(&world, &devices, small_buckets(), BATCH);
    on_ranks(1, alone).remove(0)
}

fn configs() -> Vec<DdpConfig> {
    let placements = [Placement::replicated(), Placement::zero2(), Placement::zero3()];
    placements.map(|placement| small_buckets().with_placement(placement)).to_vec()
}

/// As [`tolerance`] says for the largest gradient of any sample, with `more` roundings.
fn allowed(more: usize) -> f64 {
    let devices = [Device::flex(), Device::flex()];
    let model = Split::new(&devices).train();
    let largest = (0..STEPS * BATCH).map(|index| {
        let gradients = model.loss(&[index], &devices).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        let values = gradient_values(&model, &gradients).into_iter().flatten();
        let values = values.flatten().map(f32::abs);
        values.fold(0.0, f32::max)
    });
    let largest = f64::from(largest.fold(0.0, f32::max));
    let terms = BATCH + 2 * (INPUTS + WIDE + HIDDEN + OUTPUTS);
    tolerance(STEPS, RATE, terms + more, largest)
}

#[test]
fn a_model_that_moves_between_layers_trains_as_in_one_place() {
    let (expected, devices) = (expected(), [Device::flex(), Device::flex()]);
    for config in configs() {
        let body = |world: World| trained_over(&world, &devices, config.clone(), BATCH / 2);
        assert_close(&one_of(on_ranks(2, body)), &expected, allowed(0));
    }
}

/// The first and the last layer on the CPU, the second on an adapter, whose functions are less exact, as for a model
/// that is there as a whole.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_a_model_over_the_cpu_and_an_adapter_trains_as_in_one_place() {
    let expected = expected();
    for config in configs() {
        let found = super::wgpu::on_adapters(2, |world| {
            let devices = [Device::flex(), world.device()];
            assert_ne!(devices[0], devices[1]);
            trained_over(&world, &devices, config.clone(), BATCH / 2)
        });
        let Some(found) = found.map(one_of) else { return };
        assert_close(&found, &expected, allowed(64));
    }
}

/// A way from device to device needs a device.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_a_model_over_two_devices_has_no_way_between_devices() {
    let errors = super::wgpu::on_adapters(2, |world| {
        let devices = [Device::flex(), world.device()];
        let config = DdpConfig { route: crate::GradientRoute::Device, ..small_buckets() };
        let ddp = Ddp::with_config(Split::new(&devices), &world, config);
        ddp.unwrap_err()
    });
    assert_each_says(errors.into_iter().flatten(), &["on several devices"]);
}
