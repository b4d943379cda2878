//! Ranks whose gradients are sent over NCCL, or over a stand-in for it.
//!
//! Each needs a device of its own. Where there are too few, or no NCCL, the tests say so and do nothing.

use bonfire_gpu::Driver;
use bonfire_gpu::nccl::Nccl;

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

/// Whether NCCL is set to take several ranks on one device.
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
        assert_alike(ranks, GradientRoute::Nccl).expect("it is there");
    }
}

#[test]
fn cuda_placements_of_two_ranks_have_the_bits_of_the_way_through_the_host_over_nccl() {
    let whole = Placement::zero2().of_whole_parameters();
    for ranks in fitting([2]) {
        for placement in [Placement::zero1(), Placement::zero3(), whole] {
            assert_rows_alike(ranks, placement, GradientRoute::Nccl).expect("it is there");
        }
    }
}

/// Two numbers of 16 bits have the same rounded sum whether f32 is between or not, since f32 has more than
/// twice their digits, and two (Figueroa, When is double rounding innocuous?).
#[test]
fn cuda_gradients_of_16_bits_of_two_ranks_have_the_bits_of_the_way_through_the_host_over_nccl() {
    for ranks in fitting([2]) {
        for precision in PRECISIONS {
            assert_alike_in_16_bits(ranks, precision, GradientRoute::Nccl).expect("it is there");
        }
    }
}

/// A mean of numbers of 16 bits, and how far from it so many roundings of each may lead: by at most
/// `gamma = k u / (1 - k u)` of the mean size of the numbers (Higham, Accuracy and Stability of Numerical
/// Algorithms, 3.1), and half the smallest number for each share.
fn mean(values: &[f32], precision: Precision, roundings: usize) -> (f64, f64) {
    let (digits, smallest) = match precision {
        Precision::F16 => (11, -24),
        Precision::Bf16 => (8, -133),
        Precision::F32 => unreachable!("these are of 16 bits"),
    };
    let count = values.len() as f64;
    let all = || values.iter().copied().map(f64::from);
    let ku = roundings as f64 * f64::powi(2.0, -digits);
    let size = all().map(f64::abs).sum::<f64>() / count;
    let underflow = (count + 1.0) * f64::powi(2.0, smallest - 1);
    (all().sum::<f64>() / count, ku / (1.0 - ku) * size + underflow)
}

/// NCCL rounds the reciprocal of the number of ranks, each share and each addition to 16 bits, or fewer of them;
/// the other ways round once, but for what f32 rounds, which is less than once more.
#[test]
fn cuda_gradients_of_16_bits_of_three_ranks_are_the_mean_but_for_rounding_over_nccl() {
    for ranks in fitting([3]) {
        for precision in PRECISIONS {
            assert_means(ranks, precision);
        }
    }
}

fn assert_means(ranks: u32, precision: Precision) {
    let averages = |route| {
        let found = on_devices(ranks, |world| {
            narrow_gradients((&world, world.rank().index()), precision, route)
        });
        one_of(found.expect("it is there"))
    };
    // As for two ranks, kernels are chosen before anything counts.
    averages(GradientRoute::Host);
    // Each rank's own, which nothing is done to on the way.
    let alone = |rank| {
        let run = |world| narrow_gradients((&world, rank), precision, GradientRoute::Auto);
        on_devices(1, run).expect("it is there").remove(0)
    };
    let own: Vec<Vec<f32>> = (0..ranks as usize).map(alone).collect();
    for (route, roundings) in [(GradientRoute::Nccl, ranks as usize + 1), (GradientRoute::Host, 2)]
    {
        for (index, found) in averages(route).into_iter().enumerate() {
            let values: Vec<f32> = own.iter().map(|own| own[index]).collect();
            let (exact, allowed) = mean(&values, precision, roundings);
            assert!(
                (f64::from(found) - exact).abs() <= allowed,
                "{route:?} in {precision:?}: {found} for the mean of {values:?}"
            );
        }
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
            one_of(models.expect("it is there")).1
        };
        let samples = ranks as usize * batch;
        let magnitude = largest_sample_gradient(steps * samples);
        let allowed = tolerance(steps, lr, terms(samples) + 2 * ranks as usize, magnitude);
        assert_close(&with(GradientRoute::Nccl), &with(GradientRoute::Host), allowed);
    }
}

#[test]
fn cuda_ranks_see_the_failure_of_another_over_nccl() {
    for _ in fitting([2]) {
        let error = seen_of_a_failure(GradientRoute::Nccl).expect("it is there");
        assert_names_the_first(&error);
    }
}

/// One rank more than there are devices: all hear who it is, and continue without NCCL. Where NCCL is set to
/// take it, it trains.
#[test]
fn cuda_ranks_that_share_a_device_are_refused_by_nccl_unless_it_is_set_otherwise() {
    let devices = devices();
    if devices == 0 {
        return;
    }
    if may_share() {
        if devices == 1 {
            assert_alike(2, GradientRoute::Nccl).expect("it is there");
            return;
        }
        // More than two may round otherwise than on other ways.
        let nccl = on_devices(devices + 1, |world| trained(&world, GradientRoute::Nccl));
        assert_same(&nccl.expect("it is there"));
        return;
    }
    let errors = on_devices(devices + 1, |world| {
        let model = || Mlp::new(1, &world.device());
        let with = |route| Ddp::with_config(model(), &world, routed(route));
        let refused = with(GradientRoute::Nccl).unwrap_err();
        let mut ddp = with(GradientRoute::Auto).expect("the group goes on");
        ddp.backward(|model| model.loss(&[1, 2])).unwrap();
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
        assert!(text.contains(&who) && text.contains("GradientRoute::Nccl"), "{text}");
    }
}
