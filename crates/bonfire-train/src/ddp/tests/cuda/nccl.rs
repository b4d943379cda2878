//! Ranks whose gradients travel over NCCL, or over a stand-in for it.
//!
//! Each needs a device of its own. Where there are too few, or no NCCL, the tests say so and do nothing.

use bonfire_collective::cuda::Driver;
use bonfire_collective::cuda::nccl::Nccl;

use super::*;

/// How many devices there are that NCCL is there for.
fn devices() -> u32 {
    let devices = Driver::load().and_then(|driver| driver.devices());
    match (devices, Nccl::load()) {
        (Ok(devices), Ok(_)) => devices.len() as u32,
        (Err(error), _) | (_, Err(error)) => {
            println!("skipped: {error}");
            0
        }
    }
}

/// Whether NCCL is told to take several ranks on one device.
fn may_share() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1")
}

/// The numbers of ranks that have a device each.
fn fitting(ranks: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let devices = devices();
    let (fit, rest): (Vec<u32>, Vec<u32>) = ranks.into_iter().partition(|n| *n <= devices);
    if !rest.is_empty() {
        println!("skipped: {rest:?} ranks on {devices} devices with NCCL");
    }
    fit
}

/// The sum of one or two values has no order, and half of it is exact whether it is taken before or after.
#[test]
fn cuda_gradients_of_two_ranks_have_the_bits_of_the_way_through_the_host_over_nccl() {
    for ranks in fitting([1, 2]) {
        let with = |route| on_devices(ranks, |world| trained(&world, route)).expect("it is there");
        let (nccl, host) = (with(GradientRoute::Nccl), with(GradientRoute::Host));
        assert_same(&nccl);
        assert_eq!((nccl[0].0, host[0].0), (Site::Device, Site::Host));
        assert!(nccl[0].1 == host[0].1, "{ranks} ranks differ");
    }
}

/// NCCL adds in an order of its own, and divides before: as many roundings more as there are ranks.
#[test]
fn cuda_gradients_of_three_ranks_differ_by_rounding_over_nccl() {
    let (steps, lr, batch) = (5, 0.05, 3);
    for ranks in fitting([3]) {
        let with = |route| {
            let models = on_devices(ranks, |world| {
                let model = train(&world, routed(route), steps, batch, lr);
                (bits(&model), named_values(&model))
            });
            let models = models.expect("it is there");
            assert_same(&models);
            models.into_iter().next().expect("there are ranks").1
        };
        let samples = ranks as usize * batch;
        let magnitude = largest_sample_gradient(steps * samples);
        let allowed = tolerance(steps, lr, terms(samples) + 2 * ranks as usize, magnitude);
        assert_close(
            &with(GradientRoute::Nccl),
            &with(GradientRoute::Host),
            allowed,
        );
    }
}

#[test]
fn cuda_ranks_see_the_failure_of_another_over_nccl() {
    for _ in fitting([2]) {
        let error = seen_of_a_failure(GradientRoute::Nccl).expect("it is there");
        assert_names_the_first(&error);
    }
}

/// One rank more than there are devices: all hear who it is, and go on without NCCL. Where NCCL is told to
/// take it, it trains.
#[test]
fn cuda_ranks_that_share_a_device_are_refused_by_nccl_unless_it_is_told_otherwise() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    if may_share() {
        let with = |route| on_devices(devices + 1, |world| trained(&world, route));
        let (nccl, host) = (with(GradientRoute::Nccl), with(GradientRoute::Host));
        let (nccl, host) = (nccl.expect("it is there"), host.expect("it is there"));
        assert_same(&nccl);
        assert!(devices > 1 || nccl[0].1 == host[0].1, "two ranks differ");
        return;
    }
    let errors = on_devices(devices + 1, |world| {
        let device = world.device();
        let with = |route| Ddp::with_config(Mlp::new(1, &device), &world, routed(route));
        let refused = with(GradientRoute::Nccl).unwrap_err();
        let mut ddp = with(GradientRoute::Auto).expect("the group goes on");
        ddp.backward(|model| model.loss(&[1, 2], &device)).unwrap();
        refused
    });
    for error in errors.expect("it is there") {
        let route = GradientRoute::Nccl;
        assert!(
            matches!(&error, TrainError::NoDeviceRoute { route: asked, .. } if *asked == route),
            "{error:?}"
        );
        let text = error.to_string();
        let who = format!("rank {devices} is on the device of rank 0");
        assert!(
            text.contains(&who) && text.contains("GradientRoute::Nccl"),
            "{text}"
        );
    }
}
