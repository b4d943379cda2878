//! Replicas are equal, and equal to what one rank computes.

use bonfire_collective::TransportKind;

use super::*;

#[test]
fn replicas_stay_bit_identical_for_200_steps() {
    for ranks in [1, 2, 3] {
        let models = on_ranks(ranks, |world| {
            // Every rank starts with other values: those of rank 0 must win.
            let model = Mlp::new(u64::from(world.rank().get()), &world.device());
            let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
            let mut optimizer = AdamWConfig::new().init();
            for step in 0..200 {
                let indices = share(&world, step, 2);
                take_step(&mut ddp, &mut optimizer, 1e-3, |model| model.loss(&indices));
            }
            bits(ddp.module())
        });
        assert_same(&models);
    }
}

/// Else an optimizer that writes in place would copy all of them, in every step.
#[test]
fn nothing_but_the_model_holds_parameters_between_backward_and_step() {
    for ranks in [1, 2] {
        on_ranks(ranks, |world| {
            let model = Mlp::new(1, &world.device());
            let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
            let mut optimizer = bonfire_optim::AdamWConfig::new().init();
            let mut places = addresses(ddp.module());
            for step in 0..4 {
                let indices = share(&world, step, 2);
                take_step(&mut ddp, &mut optimizer, 1e-3, |model| model.loss(&indices));
                let before = std::mem::replace(&mut places, addresses(ddp.module()));
                assert_eq!(places, before);
            }
        });
    }
}

/// Where the parameters are in host memory.
fn addresses<M: Module>(model: &M) -> Vec<usize> {
    struct Reader(Vec<usize>);
    impl ModuleVisitor for Reader {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val().inner();
            let primitive = tensor.try_into_primitive::<burn::backend::Flex>().unwrap();
            self.0.push(primitive.as_slice::<f32>().unwrap().as_ptr() as usize);
        }
    }
    let mut reader = Reader(Vec::new());
    model.visit(&mut reader);
    reader.0
}

#[test]
fn several_ranks_train_what_one_rank_trains_with_the_whole_batch() {
    let (steps, lr, samples) = (10, 0.05, 24);
    let moved = |world: &World, config, batch| {
        let start = named_values(&Mlp::new(1, &world.device()));
        difference(&named_values(&train(world, config, steps, batch, lr)), &start)
    };
    let alone = on_ranks(1, |world| moved(&world, DdpConfig::default(), samples));
    let magnitude = largest_sample_gradient(steps * samples);
    for ranks in [2, 3, 4] {
        let batch = samples / ranks as usize;
        let together = on_ranks(ranks, |world| moved(&world, small_buckets(), batch));
        let allowed = tolerance(steps, lr, terms(samples), magnitude);
        assert_close(&together[0], &alone[0], allowed);
    }
}

/// How far parameters are from where they were.
fn difference(
    values: &[(String, Vec<f64>)],
    start: &[(String, Vec<f64>)],
) -> Vec<(String, Vec<f64>)> {
    let pairs = values.iter().zip(start);
    pairs
        .map(|((name, values), (_, start))| {
            let moved = values.iter().zip(start).map(|(value, start)| value - start);
            (name.clone(), moved.collect())
        })
        .collect()
}

#[test]
fn buckets_of_any_size_give_the_bits_of_single_parameters() {
    for ranks in [1, 2, 3, 4] {
        let with = |averaging: Averaging| {
            one_of(on_ranks(ranks, |world| bits(&train(&world, averaging.clone(), 5, 3, 0.05))))
        };
        let reference = with(Averaging::per_parameter(DdpConfig::default()));
        for bucket_bytes_max in [1, 64, 300, 1000, 4096, 25 << 20] {
            let config = DdpConfig {
                bucket_bytes_max,
                first_bucket_bytes_max: bucket_bytes_max.min(200),
                ..DdpConfig::default()
            };
            assert!(
                with(config.into()) == reference,
                "{ranks} ranks with buckets of {bucket_bytes_max} bytes differ from single parameters"
            );
        }
    }
}

#[test]
fn every_transport_trains_to_the_same_bits() {
    let body = |world: World| bits(&train(&world, small_buckets(), 5, 3, 0.05));
    let reference = on_ranks(3, body);
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let options = GroupOptions::default().with_transport(Some(transport));
        let models = connected(3, options, |group| body(world(group)));
        assert!(models == reference, "{transport} differs from threads");
    }
}

#[test]
fn buckets_are_dealt_again_once_in_the_order_of_the_gradients() {
    let orders = on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, small_buckets()).unwrap();
        let mut seen = vec![ddp.buckets()];
        for step in 0..3 {
            let indices = share(&world, step, 2);
            let _gradients = ddp.backward(|model| model.loss(&indices)).unwrap();
            seen.push(ddp.buckets());
        }
        seen
    });
    let [guessed, first, observed, still] = &one_of(orders)[..] else {
        panic!("three steps were taken");
    };
    assert_eq!(guessed, first);
    assert_eq!(guessed[0].parameters[0], "third.bias");
    assert!(observed[0].parameters[0].starts_with("third."));
    assert_eq!(observed, still);
    let names = |buckets: &[BucketSummary]| {
        let mut names: Vec<String> = buckets.iter().flat_map(|b| b.parameters.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(guessed), names(observed));
}

/// Parameters of two types, one of them frozen, and running state.
#[derive(Module, Debug)]
struct Mixed {
    single: Param<Tensor<1>>,
    double: Param<Tensor<2>>,
    frozen: Param<Tensor<1>>,
    norm: burn::nn::BatchNorm,
}

impl Mixed {
    fn new(seed: f32, device: &Device) -> Self {
        let values = |count: usize| TensorData::new(vec![seed; count], [count]);
        let double = Tensor::<1>::from_data(values(6), (device, burn::tensor::DType::F64));
        let mut model = Self {
            single: Param::from_data(values(3), device),
            double: Param::from_tensor(double.reshape([2, 3])),
            frozen: Param::from_data(values(2), device).set_require_grad(false),
            norm: burn::nn::BatchNormConfig::new(3).init(device),
        };
        model.norm = seeded(model.norm, seed as u64);
        model
    }
}

#[test]
fn frozen_parameters_running_state_and_other_types_come_from_rank_0_too() {
    let models = on_ranks(3, |world| {
        let device = world.device();
        let seed = world.rank().get() as f32 + 1.0;
        let mut ddp = Ddp::new(Mixed::new(seed, &device), &world).unwrap();
        let start = bits(ddp.module());
        for _ in 0..2 {
            descend(&mut ddp, 0.1, |model| {
                let double = model.double.val().cast(burn::tensor::DType::F32).sum();
                (model.single.val() * seed).sum() + double * seed
            });
        }
        (start, bits(ddp.module()), named_values(ddp.module()))
    });
    let (_, _, all) = one_of(models);
    let values = |name: &str| all.iter().find(|(found, _)| found == name).unwrap().1.clone();
    assert_eq!(values("frozen"), [1.0, 1.0]);
    // The mean of the seeds is 2: two steps of 0.1 take 0.4 away.
    for value in values("double") {
        assert!((value - 0.6).abs() < 4.0 * f64::from(f32::EPSILON), "{value}");
    }
}

#[test]
fn a_model_with_gradient_checkpointing_is_followed_too() {
    let with = |checkpointing: bool| {
        on_ranks(2, |world| {
            let device = world.device().autodiff();
            let device = if checkpointing { device.gradient_checkpointing() } else { device };
            let mut ddp = Ddp::with_config(Mlp::new(1, &device), &world, small_buckets()).unwrap();
            for step in 0..3 {
                descend(&mut ddp, 0.05, |model| model.loss(&share(&world, step, 2)));
            }
            bits(ddp.module())
        })
    };
    assert_eq!(with(true), with(false));
}

#[test]
fn a_step_returns_its_loss_without_its_graph_and_what_else_the_pass_returned() {
    on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let expected = ddp.module().loss(&[1]).into_scalar::<f32>();
        for _ in 0..2 {
            let micro_step = ddp.no_sync(|model| (model.loss(&[1]), "first"));
            let step = ddp.backward(|model| (model.loss(&[1]), "second"));
            let (micro_step, step) = (micro_step.unwrap(), step.unwrap());
            assert_eq!((micro_step.output, step.output), ("first", "second"));
            for loss in [micro_step.loss, step.loss] {
                assert!(!loss.tensor().is_autodiff());
                assert_eq!(loss.value().unwrap() as f32, expected);
            }
            assert!(step.timing.forward_backward > Duration::ZERO);
        }
    });
}
