//! Ranks whose models are on CUDA devices: their gradients stay there, with the bits of the way through the
//! host.
//!
//! Where there is no device, the tests say so and do nothing. A stand-in for the driver will do.

use super::placement::Uneven;
use super::precision::{PRECISIONS, loss_in};
use super::*;
use crate::reducer::collect::Site;
pub(super) use crate::world::tests::on_devices;
use crate::{GradientRoute, Loss, Placement, Precision};

mod nccl;

pub(super) fn routed(route: GradientRoute) -> DdpConfig {
    DdpConfig { route, ..small_buckets() }
}

fn site(ddp: &Ddp<Mlp>) -> Site {
    ddp.reducer.lock().site()
}

fn trained(world: &World, route: GradientRoute) -> (Site, Bits) {
    let ddp = train_unevenly(world, routed(route));
    (site(&ddp), bits(ddp.module()))
}

/// Ranks that train on this way and through the host; `None` without devices.
fn assert_alike(ranks: u32, route: GradientRoute) -> Option<()> {
    let with = |route| on_devices(ranks, |world| trained(&world, route));
    // What runs while Burn measures which kernels are the fastest may round otherwise than those.
    with(GradientRoute::Host)?;
    let (device, host) = (with(route)?, with(GradientRoute::Host)?);
    assert_same(&device);
    assert_eq!((device[0].0, host[0].0), (Site::Device, Site::Host));
    assert!(device[0].1 == host[0].1, "{ranks} ranks differ");
    Some(())
}

#[test]
fn cuda_gradients_stay_on_their_devices_with_the_bits_of_the_way_through_the_host() {
    for ranks in [1, 2, 3] {
        if assert_alike(ranks, GradientRoute::Device).is_none() {
            return;
        }
    }
}

/// The parameters of ranks with rows, and whether gradients and gathered parameters stayed on their devices.
fn trained_rows(world: &World, placement: Placement, route: GradientRoute) -> (Site, bool, Bits) {
    let config = routed(route).with_placement(placement);
    let mut ddp = Ddp::with_config(Uneven::new(&world.device()), world, config).unwrap();
    assert_cut(&ddp);
    for step in 0..4 {
        let indices = share(world, step, 2);
        if step > 1 {
            ddp.no_sync(|model| model.loss(&indices)).unwrap();
        }
        let done = ddp.backward(|model| model.loss(&indices)).unwrap();
        let gradients = done.gradients.clip(Clip::Norm(0.1)).unwrap();
        ddp.step(&mut sgd(), 0.05, gradients).unwrap();
    }
    let lane = ddp.gatherer.as_ref().is_none_or(|gatherer| gatherer.has_lane());
    let site = ddp.reducer.lock().site();
    (site, lane, bits(&ddp.whole().unwrap()))
}

/// Ranks with rows that train on this way and through the host; `None` without devices.
fn assert_rows_alike(ranks: u32, placement: Placement, route: GradientRoute) -> Option<()> {
    let with = |route| on_devices(ranks, |world| trained_rows(&world, placement, route));
    // As above.
    with(GradientRoute::Host)?;
    let (device, host) = (with(route)?, with(GradientRoute::Host)?);
    assert_same(&device);
    assert_eq!((device[0].0, device[0].1, host[0].0), (Site::Device, true, Site::Host));
    assert!(device[0].2 == host[0].2, "{placement} on {ranks} ranks");
    Some(())
}

/// Rows, too: those of gradients, of parameters that have been stepped, and of those that are gathered for a pass.
#[test]
fn cuda_placements_stay_on_their_devices_with_the_bits_of_the_way_through_the_host() {
    for (ranks, placement) in [
        (2, Placement::zero1()),
        (3, Placement::zero2()),
        (2, Placement::zero3()),
        (3, Placement::zero3()),
        (3, Placement::zero2().of_whole_parameters()),
    ] {
        if assert_rows_alike(ranks, placement, GradientRoute::Device).is_none() {
            return;
        }
    }
}

/// What a loss in 16 bits is multiplied with, so that half of a gradient is seldom below the normal range.
const SCALE: f32 = 1024.0;

/// A model whose parameters, and so its gradients, are of 16 bits.
fn narrow(precision: Precision, device: &Device) -> Mlp {
    let dtype = precision.lower().expect("one of 16 bits");
    cast(Mlp::new(1, device), dtype.into())
}

/// The gradients of the samples of a rank, or their mean over all ranks.
fn narrow_gradients(
    (world, rank): (&World, usize),
    precision: Precision,
    route: GradientRoute,
) -> Vec<f32> {
    const BATCH: usize = 3;
    let model = narrow(precision, &world.device());
    let mut ddp = Ddp::with_config(model, world, routed(route)).unwrap();
    let indices: Vec<usize> = (rank * BATCH..(rank + 1) * BATCH).collect();
    let loss = |model: &Mlp| loss_in(precision, model, &indices) * SCALE;
    let gradients = ddp.backward(loss).unwrap().gradients;
    let values = gradient_values(ddp.module(), &gradients);
    values.into_iter().flatten().flatten().collect()
}

/// Equal and unequal micro-batches in 16 bits: every gradient, and the parameters in the end.
fn trained_narrow(
    world: &World,
    precision: Precision,
    route: GradientRoute,
) -> (Site, Vec<Option<Vec<f32>>>, Bits) {
    let model = narrow(precision, &world.device());
    let mut ddp = Ddp::with_config(model, world, routed(route)).unwrap();
    let mut seen = Vec::new();
    for step in 0..4 {
        let indices = share(world, step, 2 + world.rank().index());
        let loss = |model: &Mlp| {
            let loss = loss_in(precision, model, &indices) * SCALE;
            Loss::mean_over(loss, indices.len())
        };
        if step > 1 {
            ddp.no_sync(loss).unwrap();
        }
        let gradients = ddp.backward(loss).unwrap().gradients;
        let weight: Tensor<2> = gradients.get(&ddp.module().first.weight).unwrap();
        assert_eq!(Some(weight.dtype()), precision.lower().map(DType::from));
        seen.extend(gradient_values(ddp.module(), &gradients));
        ddp.step(&mut sgd(), 0.05 / f64::from(SCALE), gradients).unwrap();
    }
    (site(&ddp), seen, bits(ddp.module()))
}

/// Ranks that train in 16 bits on this way and through the host; `None` without devices.
fn assert_alike_in_16_bits(ranks: u32, precision: Precision, route: GradientRoute) -> Option<()> {
    let with = |route| on_devices(ranks, |world| trained_narrow(&world, precision, route));
    // As above.
    with(GradientRoute::Host)?;
    let (device, host) = (with(route)?, with(GradientRoute::Host)?);
    assert_same(&device);
    assert_eq!((device[0].0, host[0].0), (Site::Device, Site::Host));
    assert!(device[0].1 == host[0].1, "{precision:?}: gradients differ");
    assert!(device[0].2 == host[0].2, "{precision:?}: parameters differ");
    Some(())
}

#[test]
fn cuda_gradients_of_16_bits_have_the_bits_of_the_way_through_the_host() {
    for (ranks, precision) in [2, 3].into_iter().zip(PRECISIONS) {
        if assert_alike_in_16_bits(ranks, precision, GradientRoute::Device).is_none() {
            return;
        }
    }
}

/// What the second of two ranks sees when the first fails in a step; nothing without devices.
fn seen_of_a_failure(route: GradientRoute) -> Option<TrainError> {
    // What one rank sees of another that fails while it still begins is another error.
    let begun = std::sync::Barrier::new(2);
    let errors = on_devices(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, routed(route)).unwrap();
        begun.wait();
        let forward = |model: &Mlp| {
            if world.is_main() {
                Err(std::io::Error::other("no more data"))
            } else {
                Ok(model.loss(&[1, 2]))
            }
        };
        ddp.backward(forward).unwrap_err()
    });
    errors?.pop()
}

fn assert_names_the_first(error: &TrainError) {
    let TrainError::Collective(CollectiveError::PeerFailed { rank, cause }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(rank.get(), 0);
    assert!(cause.contains("no more data"), "{cause}");
}

#[test]
fn cuda_ranks_see_the_failure_of_another() {
    if let Some(error) = seen_of_a_failure(GradientRoute::Auto) {
        assert_names_the_first(&error);
    }
}

#[test]
fn cuda_replicas_whose_norms_differ_clip_alike() {
    if let Some(norms) = on_devices(2, |world| norm_of_a_device_of_its_own(&world)) {
        assert_eq!(norms[0], norms[1]);
    }
}
