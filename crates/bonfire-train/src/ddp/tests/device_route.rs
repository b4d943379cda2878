//! Gradients that stay on their devices, on the tests' engine: the bits are those of the way through the
//! host, whatever a step is like.

use super::*;
use crate::reducer::collect::Site;
use crate::reducer::device_route::double;
use crate::{GradientCompression, GradientRoute, Loss};

fn with_route(route: GradientRoute, bucket_bytes_max: usize) -> DdpConfig {
    DdpConfig {
        bucket_bytes_max,
        first_bucket_bytes_max: bucket_bytes_max.min(200),
        route,
        ..DdpConfig::default()
    }
}

/// The same on both ways, on all ranks.
fn assert_alike<R: PartialEq + Send + std::fmt::Debug>(
    ranks: u32,
    body: impl Fn(&World, DdpConfig) -> R + Sync,
) {
    for bucket_bytes_max in [1, 300, 25 << 20] {
        let with = |route| {
            let config = with_route(route, bucket_bytes_max);
            let all = on_ranks(ranks, |world| body(&world, config.clone()));
            assert_same(&all);
            all
        };
        let (host, device) = (with(GradientRoute::Host), with(GradientRoute::Device));
        assert!(host == device, "{ranks} ranks with buckets of {bucket_bytes_max} bytes differ");
    }
}

#[test]
fn training_gives_the_bits_of_the_way_through_the_host() {
    for ranks in 1..=4 {
        assert_alike(ranks, |world, config| bits(&train(world, config, 5, 3, 0.05)));
    }
}

/// Micro-batches of different sizes, of which some ranks have none, and a layer that not every one uses.
#[test]
fn weighted_micro_batches_of_unequal_ranks_give_the_same_bits() {
    assert_alike(3, |world, config| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Mlp::new(1, &device), world, config).unwrap();
        let mut seen = Vec::new();
        for step in 0..5 {
            let loss = |model: &Mlp, part: usize| {
                let count = (step + part + world.rank().index()) % 3;
                let indices: Vec<usize> = (0..count.max(1)).map(|i| 7 * step + i).collect();
                let tensor = match part {
                    0 => model.loss(&indices),
                    _ => {
                        let (x, _) = samples(&indices, &device);
                        model.first.forward(x).powi_scalar(2).mean()
                    }
                };
                Loss::mean_over(tensor, count)
            };
            ddp.no_sync(|model| loss(model, 1)).unwrap();
            if step > 2 {
                ddp.no_sync(|model| loss(model, 0)).unwrap();
            }
            let gradients = ddp.backward(|model| loss(model, step % 2)).unwrap().gradients;
            seen.push(gradient_values(ddp.module(), &gradients));
            ddp.step(&mut sgd(), 0.05, gradients).unwrap();
        }
        (seen, bits(ddp.module()))
    });
}

/// Equal micro-batches, and parameters that no rank, or one rank, has a gradient for.
#[test]
fn parameters_that_are_not_used_give_the_same_gradients() {
    assert_alike(2, |world, config| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Mlp::new(1, &device), world, config).unwrap();
        (0..4)
            .map(|step| {
                let indices = share(world, step, 2);
                let used = |model: &Mlp| {
                    let (x, _) = samples(&indices, &device);
                    let x = model.first.forward(x);
                    let x = if world.is_main() && step > 1 { model.second.forward(x) } else { x };
                    x.powi_scalar(2).mean()
                };
                ddp.no_sync(used).unwrap();
                let gradients = ddp.backward(used).unwrap().gradients;
                gradient_values(ddp.module(), &gradients)
            })
            .collect::<Vec<_>>()
    });
}

#[test]
fn a_failure_is_the_error_that_it_is_through_the_host() {
    let errors = on_ranks(2, |world| {
        let config = with_route(GradientRoute::Device, 300);
        let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
        let forward = |model: &Mlp| {
            if world.is_main() {
                Err(std::io::Error::other("no more data"))
            } else {
                Ok(model.loss(&[1, 2]))
            }
        };
        ddp.backward(forward).unwrap_err()
    });
    assert!(matches!(&errors[0], TrainError::Forward(_)), "{:?}", errors[0]);
    let TrainError::Collective(CollectiveError::PeerFailed { rank, cause }) = &errors[1] else {
        panic!("{:?}", errors[1]);
    };
    assert_eq!(rank.get(), 0);
    assert!(cause.contains("no more data"), "{cause}");
}

#[test]
fn a_way_that_there_is_not_is_an_error_where_it_is_asked_for() {
    let errors = on_ranks(2, |world| {
        let config = DdpConfig {
            compression: GradientCompression::Bf16,
            ..with_route(GradientRoute::Device, 300)
        };
        Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, TrainError::NoDeviceRoute { .. }), "{error}");
        assert!(error.to_string().contains("compressed"), "{error}");
    }
}

/// Whatever this build has: models on the CPU have no way over NCCL.
#[test]
fn a_way_over_nccl_that_there_is_not_is_the_same_error_on_all_ranks() {
    let errors = on_ranks(2, |world| {
        let config = with_route(GradientRoute::Nccl, 300);
        let model = || Mlp::new(1, &world.device());
        let error = Ddp::with_config(model(), &world, config).unwrap_err();
        // The group goes on.
        Ddp::new(model(), &world).unwrap();
        error.to_string()
    });
    assert_same(&errors);
    let expected = if cfg!(feature = "cuda") {
        "rank 0: the model is on"
    } else {
        "built without the feature cuda"
    };
    let text = &errors[0];
    assert!(text.contains("GradientRoute::Nccl") && text.contains(expected), "{text}");
}

#[test]
fn the_cpu_is_no_device_unless_it_is_asked_for() {
    let sites = on_ranks(2, |world| {
        assert!(double::knows(&world.device()));
        [GradientRoute::Auto, GradientRoute::Device].map(|route| {
            let config = with_route(route, 300);
            let ddp = Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap();
            ddp.reducer.lock().site()
        })
    });
    assert_eq!(one_of(sites), [Site::Host, Site::Device]);
}
