//! Ranks that compute on graphics adapters, or on the CPU through a graphics driver.
//!
//! Gradients go through host memory. Where there is no adapter, the tests say so and do nothing.

use bonfire_testkit::local;

use super::*;
use crate::reducer::trace::Event;
use crate::world::tests::world_on;
use crate::{DeviceKind, Placement};

/// Runs `body` on `ranks` ranks that share the adapters of this machine; nothing without any.
pub(super) fn on_adapters<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Option<Vec<R>> {
    on_adapters_with(GroupOptions::default(), ranks, body)
}

fn on_adapters_with<R: Send>(
    options: GroupOptions,
    ranks: u32,
    body: impl Fn(World) -> R + Sync,
) -> Option<Vec<R>> {
    let adapter = |group| world_on(group, DeviceKind::Wgpu);
    // Asked by one rank first: where one skips, all must.
    let mut found = local(1, GroupOptions::default(), |group| {
        adapter(group).map(|world| world.device_name().to_owned())
    });
    match found.remove(0) {
        Ok(name) => println!("{ranks} ranks on {name}"),
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    }
    let run = |group| body(adapter(group).expect("it has just answered"));
    Some(local(ranks, options, run))
}

/// As on the CPU: all ranks end with the bits of rank 0, whatever travels.
#[test]
fn wgpu_replicas_stay_bit_identical_and_move() {
    let start = bits(&Mlp::new(1, &Device::flex()));
    for config in [
        small_buckets(),
        DdpConfig { compression: crate::GradientCompression::Bf16, ..small_buckets() },
    ] {
        let trained = on_adapters(2, |world| bits(&train(&world, config.clone(), 10, 3, 0.05)));
        let Some(trained) = trained.map(one_of) else { return };
        assert_ne!(trained, start);
    }
}

/// The device is waited for once for each bucket, and a bucket leaves before the pass ends.
#[test]
fn wgpu_gradients_of_a_bucket_are_read_in_one_go() {
    on_adapters(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
        for step in 0..4 {
            let buckets = ddp.buckets().len();
            assert!((2..ddp.table.len()).contains(&buckets), "{buckets}");
            let read = |events: &[Event]| {
                let read = events.iter().filter_map(|event| match event {
                    Event::Read { bucket } => Some(*bucket),
                    _ => None,
                });
                let mut read: Vec<usize> = read.collect();
                read.sort_unstable();
                read
            };
            let indices = share(&world, step, 2);
            let trace = ddp.trace();
            trace.clear();
            ddp.no_sync(|model| model.loss(&indices)).unwrap();
            let each: Vec<usize> = (0..buckets).collect();
            assert_eq!(read(&trace.events()), each);
            ddp.backward(|model| model.loss(&indices)).unwrap();
            let events = trace.events();
            assert_eq!(read(&events), each);
            let at = |is: &dyn Fn(&Event) -> bool| events.iter().position(is);
            let last = each[buckets - 1];
            let left = at(&|event| *event == Event::Sent { bucket: 0 });
            assert!(step < 2 || left < at(&|event| *event == Event::Read { bucket: last }));
        }
    });
}

/// Whatever a bucket waits for, and whether it is cut.
#[test]
fn wgpu_buckets_give_the_bits_of_single_gradients() {
    let with = |averaging: Averaging| {
        on_adapters(3, |world| bits(&train_unevenly(&world, averaging.clone()).whole().unwrap()))
    };
    // What runs while Burn measures which kernels are the fastest may round otherwise than those.
    let single = Averaging::per_parameter(DdpConfig::default());
    let (Some(_), Some(expected)) = (with(single.clone()), with(single)) else {
        return;
    };
    for placement in [Placement::replicated(), Placement::zero2(), Placement::zero3()] {
        let found = with(small_buckets().with_placement(placement).into());
        assert!(found.as_ref() == Some(&expected), "{placement}");
    }
}

/// Whoever compiles kernels longer than others is waited for.
#[test]
fn wgpu_ranks_have_the_start_up_time_for_their_first_steps() {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(1));
    let trained = on_adapters_with(options, 2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        for _ in 0..2 {
            if !world.is_main() {
                std::thread::sleep(Duration::from_millis(1500));
            }
            descend(&mut ddp, 0.1, |model| model.loss(&[1, 2]));
        }
        bits(ddp.module())
    });
    let Some(trained) = trained else { return };
    assert_same(&trained);
}

/// An adapter adds in another order than the CPU, and its functions are less exact: Vulkan allows
/// `exp`, of which `tanh` is made, 3 + 2 |x| units in the last place. 64 more roundings allow for
/// that.
#[test]
fn wgpu_ranks_train_what_the_cpu_trains() {
    let (steps, lr, batch) = (10, 0.05, 6);
    let moved = |world: &World| named_values(&train(world, small_buckets(), steps, batch, lr));
    let Some(found) = on_adapters(2, |world| moved(&world)) else {
        return;
    };
    assert_same(&found);
    let expected = on_ranks(2, |world| moved(&world));
    let magnitude = largest_sample_gradient(steps * 2 * batch);
    let allowed = tolerance(steps, lr, terms(2 * batch) + 64, magnitude);
    assert_close(&found[0], &expected[0], allowed);
}

#[test]
fn wgpu_ranks_learn() {
    let losses = on_adapters(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
        let mut optimizer = AdamWConfig::new().init();
        let indices = share(&world, 0, 4);
        let losses = (0..60).map(|_| {
            let step = ddp.backward(|model| model.loss(&indices)).unwrap();
            ddp.step(&mut optimizer, 0.01, step.gradients).unwrap();
            step.loss.over_ranks(&world).unwrap()
        });
        losses.collect::<Vec<f64>>()
    });
    let Some(losses) = losses.map(one_of) else { return };
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < first / 2.0, "{first} to {last}");
}

/// Which adapters can compute in 16 bits is the driver's to say; the error must name what cannot.
#[test]
fn wgpu_passes_in_16_bits_learn_or_are_refused() {
    use crate::Precision;
    use burn::tensor::FloatDType;
    for (precision, dtype) in
        [(Precision::F16, FloatDType::F16), (Precision::Bf16, FloatDType::BF16)]
    {
        let outcomes = on_adapters(2, |world| {
            let device = world.device();
            let config = DdpConfig { precision, ..small_buckets() };
            let mut ddp = match Ddp::with_config(Mlp::new(1, &device), &world, config) {
                Ok(ddp) => ddp,
                Err(error) => {
                    assert!(!device.supports_dtype(dtype), "{error}");
                    assert!(matches!(error, TrainError::UnsupportedPrecision { .. }), "{error}");
                    return None;
                }
            };
            assert!(device.supports_dtype(dtype));
            let (x, y) = samples(&share(&world, 0, 4), &device);
            let losses: Vec<f64> = (0..20)
                .map(|_| {
                    let step = ddp.backward(|model| {
                        let out = model.forward(precision.cast(x.clone()));
                        assert_eq!(out.dtype(), dtype.into());
                        (out.cast(FloatDType::F32) - y.clone()).powi_scalar(2).mean()
                    });
                    let step = step.unwrap();
                    ddp.step(&mut sgd(), 0.1, step.gradients).unwrap();
                    step.loss.over_ranks(&world).unwrap()
                })
                .collect();
            assert!(losses[19] < losses[0], "{losses:?}");
            Some(bits(ddp.module()))
        });
        let Some(outcome) = outcomes.map(one_of) else { return };
        let learnt = outcome.is_some();
        println!("{precision:?} is {}", if learnt { "learnt in" } else { "refused" });
    }
}

/// State and arithmetic are on the host, so the bits are those of a model on the CPU, from a record, too.
#[test]
fn wgpu_steps_with_an_offload_have_the_bits_of_the_cpu() {
    use bonfire_optim::{AdamWConfig, Offload};

    let folder = tempfile::tempdir().unwrap();
    let files = Offload::to_files(folder.path()).unwrap();
    let all = files.clone().with_parameters();
    // An optimizer leaves parameters where they are.
    for offload in [Offload::to_memory(), files, all] {
        let stepped = on_adapters(1, |world| {
            let make = |device: &Device| {
                seeded(LinearConfig::new(200, 100).init(&device.clone().autodiff()), 1)
            };
            let optimizer = |offload| {
                let adamw = AdamWConfig::new().build().with_offload(offload);
                ModuleOptimizer::from(adamw)
            };
            let (mut model, mut here) = (make(&world.device()), make(&Device::flex()));
            let mut hosted = optimizer(Some(offload.clone()));
            let mut own = optimizer(None);
            let mut random = ChaCha8Rng::seed_from_u64(2);
            for _ in 0..4 {
                let values = random_data(&mut random, &[200, 100]);
                let gradients = |model: &Linear, device: &Device| {
                    let mut gradients = GradientsParams::new();
                    let gradient = Tensor::<2>::from_data(values.clone(), device);
                    gradients.register(model.weight.id, gradient);
                    gradients
                };
                let gradient = gradients(&model, &world.device());
                model = hosted.step(0.01, model, gradient);
                let gradient = gradients(&here, &Device::flex());
                here = own.step(0.01, here, gradient);
                assert_eq!(bits(&model), bits(&here));
                assert_eq!(model.weight.val().inner().device(), world.device());
                let record = hosted.into_bytes().unwrap();
                hosted = optimizer(Some(offload.clone())).from_bytes(record).unwrap();
            }
        });
        if stepped.is_none() {
            return;
        }
    }
}

/// Two layers whose weights are cut, and one that is frozen.
#[derive(Module, Debug)]
struct Layers {
    first: Linear,
    second: Linear,
    frozen: Linear,
}

const WIDTH: usize = 160;

impl Layers {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(device);
        let model = Self { first: layer(), second: layer(), frozen: layer() };
        let mut model = seeded(model, 1);
        model.frozen = model.frozen.no_grad();
        model
    }

    /// The second weight is used twice.
    fn loss(&self, step: u64, device: &Device) -> Tensor<1> {
        let x = Tensor::<2>::ones([2, WIDTH], device).mul_scalar(0.1 * (step + 1) as f32);
        let x = activation::tanh(self.first.forward(x));
        let x = activation::tanh(self.second.forward(x));
        let x = self.frozen.forward(self.second.forward(x));
        x.powi_scalar(2).mean()
    }
}

/// Some steps from a checkpoint, if there is one, to the next; of two micro-batches each. With the norms of the
/// gradients.
fn offloaded_steps(
    world: &World,
    (parameters, state): (Option<&bonfire_optim::Offload>, &bonfire_optim::Offload),
    saved: &std::path::Path,
) -> (Bits, Vec<f32>) {
    use crate::{Checkpoints, Clip, Keep, Milestone};

    let device = world.device();
    let model = Layers::new(&device.clone().autodiff());
    let config = small_buckets().with_placement(Placement::zero3());
    let mut ddp = Ddp::with_config(model, world, config.with_offload(parameters.cloned())).unwrap();
    let place = |param: &Param<Tensor<2>>| param.base().device().without_autodiff();
    let is_away = |ddp: &Ddp<Layers>| {
        let Layers { first, frozen, .. } = ddp.module();
        assert_eq!(place(&frozen.weight), device);
        assert_eq!(first.weight.val().device().without_autodiff(), device);
        place(&first.weight) != device
    };
    assert_eq!(is_away(&ddp), parameters.is_some());
    let adamw = bonfire_optim::AdamWConfig::new().build();
    let mut optimizer = ModuleOptimizer::from(adamw.with_offload(state.clone()));
    let checkpoints = Checkpoints::open(world, saved, Keep::last(1)).unwrap();
    let resumed = checkpoints.resume::<_, ()>(&mut ddp, &mut optimizer);
    let first = resumed.unwrap().map_or(0, |resumed| resumed.milestone.step);
    assert_eq!(is_away(&ddp), parameters.is_some());
    let norms = (first..first + 3).map(|step| {
        ddp.no_sync(|model| model.loss(step + 7, &device)).unwrap();
        let done = ddp.backward(|model| model.loss(step, &device)).unwrap();
        let gradients = done.gradients.clip(Clip::Value(0.01)).unwrap();
        gradients.check_finite().unwrap();
        let norm = gradients.norm().unwrap().unwrap().into_scalar::<f32>();
        // Far above it, so that the factor is one and the bits stay.
        let gradients = gradients.clip(Clip::Norm(1e6)).unwrap();
        ddp.step(&mut optimizer, 0.01, gradients).unwrap();
        norm
    });
    let norms = norms.collect();
    assert_eq!(is_away(&ddp), parameters.is_some());
    let milestone = Milestone { step: first + 3, metric: None };
    checkpoints.save(milestone, &mut ddp, &optimizer, &()).unwrap();
    ddp.digest().unwrap();
    (bits(&ddp.whole().unwrap()), norms)
}

/// Between the values of two models.
fn largest_difference(one: &Bits, other: &Bits) -> f64 {
    let values = |bits: &Bits| -> Vec<f64> {
        let values = bits.iter().flat_map(|(_, values)| values);
        values.map(|bits| f64::from_bits(*bits)).collect()
    };
    let (one, other) = (values(one), values(other));
    assert_eq!(one.len(), other.len());
    let apart = one.iter().zip(other).map(|(one, other)| (one - other).abs());
    apart.fold(0.0, f64::max)
}

/// The adapter computes the same gradients, and the steps are on the host either way: the same bits, before and after
/// a checkpoint.
#[test]
fn wgpu_parameters_on_the_host_train_to_the_bits_of_those_on_the_adapter() {
    use bonfire_optim::Offload;

    let folder = tempfile::tempdir().unwrap();
    let files = Offload::to_files(folder.path()).unwrap().with_parameters();
    let memory = Offload::to_memory().with_parameters();
    for ranks in [1, 2, 3] {
        let with = |parameters: Option<&Offload>| {
            let saved = tempfile::tempdir().unwrap();
            let state = parameters.cloned().unwrap_or_else(Offload::to_memory);
            let run = || {
                let models = on_adapters(ranks, |world| {
                    offloaded_steps(&world, (parameters, &state), saved.path())
                });
                models.map(one_of)
            };
            Some([run()?, run()?])
        };
        // The first one measures kernels.
        let (Some(_), Some(here)) = (with(None), with(None)) else {
            return;
        };
        for offload in [&memory, &files] {
            let there = with(Some(offload)).unwrap();
            for ((bits, norms), (same_bits, same_norms)) in here.iter().zip(&there) {
                let apart = largest_difference(bits, same_bits);
                println!("{ranks} ranks, {offload:?}: {apart:e} apart");
                // One rank gathers only what is offloaded, and kernels are fused otherwise.
                let allowed = if ranks == 1 { 1e-5 } else { 0.0 };
                assert!(apart <= allowed, "{ranks} ranks, {offload:?}: {apart:e}");
                for (norm, same) in norms.iter().zip(same_norms) {
                    assert!((norm - same).abs() <= 1e-5 * norm, "{norm} {same}");
                }
            }
        }
    }
}

#[test]
fn wgpu_parameters_that_are_not_cut_are_not_offloaded() {
    use bonfire_optim::Offload;

    for placement in [Placement::replicated(), Placement::zero2()] {
        let errors = on_adapters(2, |world| {
            let config = small_buckets().with_placement(placement);
            let model = Mlp::new(1, &world.device());
            let offload = Offload::to_memory().with_parameters();
            let ddp = Ddp::with_config(model, &world, config.with_offload(offload));
            ddp.unwrap_err()
        });
        let expected = format!("{placement} cannot be used: parameters are offloaded from");
        assert_each_says(errors.into_iter().flatten(), &[&expected]);
    }
}

#[test]
fn wgpu_replicas_whose_norms_differ_clip_alike() {
    if let Some(norms) = on_adapters(2, |world| norm_of_a_device_of_its_own(&world)) {
        assert_eq!(norms[0], norms[1]);
    }
}
