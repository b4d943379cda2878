//! The way from device to device has the results of the way through host memory, bit for bit.

use bonfire_collective::{GroupOptions, ReduceOp};
use bonfire_testkit::local;
use burn::tensor::{DType, Tensor};

use super::lane::{DeviceLane, Lane};
use super::*;
use crate::reducer::device_route::{Timing, double};
use crate::world::tests::world;

const TRANSFERS: [Transfer; 8] = [
    Transfer::AllReduce(ReduceOp::Sum),
    Transfer::AllReduce(ReduceOp::Max),
    Transfer::AllReduce(ReduceOp::Mean),
    Transfer::AllGather,
    Transfer::ReduceScatter,
    Transfer::AllToAll,
    Transfer::Broadcast,
    Transfer::Shift,
];

/// As many elements for each rank.
const BLOCK: usize = 5;

fn values(world: &World, dtype: DType, step: usize) -> Tensor<1> {
    let (rank, ranks) = (world.rank().index(), world.world_size().len());
    let value = |i: usize| ((rank * 31 + i * 7 + step * 3) % 23) as f32 / 7.0 - 1.0;
    let all: Vec<f32> = (0..ranks * BLOCK * (1 + step)).map(value).collect();
    Tensor::<1>::from_floats(&all[..], &world.device()).cast(dtype)
}

fn bytes(tensor: Tensor<1>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

/// Has the tensors of a world sent by the tests' engine, whose actions it returns.
fn over_devices(world: &World, timing: Timing) -> std::sync::Arc<std::sync::Mutex<Vec<String>>> {
    let (engine, log) = double::engine(world.group(), timing);
    let lane = Lane::Device(DeviceLane::new(engine, world.device()));
    *world.lane().lock() = Some(Box::new(lane));
    log
}

fn count(log: &std::sync::Mutex<Vec<String>>, name: &str) -> usize {
    log.lock().unwrap().iter().filter(|action| action.starts_with(name)).count()
}

#[test]
fn tensors_arrive_from_devices_as_they_do_through_the_host() {
    for ranks in [2, 3, 4, 5] {
        for timing in [Timing::Ordered, Timing::Overlapped, Timing::Apart] {
            let found = local(ranks, GroupOptions::default(), |group| {
                let world = world(group);
                let mut all = Vec::new();
                for dtype in [DType::F32, DType::BF16, DType::F64] {
                    // Ranks alike, each larger than the last.
                    for (step, kind) in TRANSFERS.into_iter().enumerate() {
                        let x = values(&world, dtype, step);
                        all.push((x, kind));
                    }
                }
                let send = |(x, kind): &(Tensor<1>, Transfer)| {
                    bytes(transfer(x.clone(), &world, *kind).unwrap())
                };
                let host: Vec<_> = all.iter().map(send).collect();
                let log = over_devices(&world, timing);
                let devices: Vec<_> = all.iter().map(send).collect();
                let runs = count(&log, "Run");
                assert!(runs >= all.len(), "{runs} operations of devices for {}", all.len());
                (host, devices)
            });
            for (host, devices) in found {
                assert_eq!(host, devices, "{ranks} ranks, {timing:?}");
            }
        }
    }
}

#[test]
fn an_operation_may_begin_before_another_has_ended() {
    let found = local(3, GroupOptions::default(), |group| {
        let world = world(group);
        let log = over_devices(&world, Timing::Ordered);
        let [first, second] = [0, 1].map(|step| values(&world, DType::F32, step));
        let shift = |x: &Tensor<1>| begin(x.clone(), &world, Transfer::Shift).unwrap();
        let (one, two) = (shift(&first), shift(&second));
        let both = [one, two].map(|arrival| bytes(arrival.wait().unwrap()));
        // Memory is there for two, and is used again.
        let again = [shift(&first), shift(&second)].map(|arrival| bytes(arrival.wait().unwrap()));
        assert_eq!(both, again);
        (both, [first, second].map(bytes), count(&log, "settle"), count(&log, "Ahead"))
    });
    for rank in 0..3 {
        let previous = (rank + 2) % 3;
        assert_eq!(found[rank].0, found[previous].1);
        // The host waits for nothing.
        assert_eq!((found[rank].2, found[rank].3), (0, 4));
    }
}

#[test]
fn a_world_that_has_failed_sends_nothing() {
    local(2, GroupOptions::default(), |group| {
        let world = world(group);
        let log = over_devices(&world, Timing::Ordered);
        world.group().abort("it is over");
        let error = begin(values(&world, DType::F32, 0), &world, Transfer::AllGather).unwrap_err();
        assert!(error.to_string().contains("it is over"), "{error}");
        assert!(log.lock().unwrap().is_empty());
    });
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_tensors_stay_on_their_devices_with_the_results_of_the_way_through_the_host() {
    for ranks in [2, 3] {
        let found = crate::world::tests::on_devices(ranks, |world| {
            for dtype in [DType::F32, DType::BF16] {
                for (step, kind) in TRANSFERS.into_iter().enumerate() {
                    let x = values(&world, dtype, step);
                    let host = through_host(x.clone(), world.group(), kind).map(Arrival);
                    let host = bytes(host.unwrap().wait().unwrap());
                    let device = bytes(transfer(x, &world, kind).unwrap());
                    assert_eq!(host, device, "{ranks} ranks, {kind:?}");
                }
            }
            let slot = world.lane().lock();
            let lane = slot.as_ref().and_then(|lane| lane.downcast_ref::<Lane>());
            assert!(matches!(lane, Some(Lane::Device(_))), "{lane:?}");
        });
        if found.is_none() {
            return;
        }
    }
}

/// A mesh may have an axis of one rank.
#[test]
fn a_lone_rank_has_the_elements_already() {
    local(1, GroupOptions::default(), |group| {
        let world = world(group);
        let log = over_devices(&world, Timing::Ordered);
        let x = values(&world, DType::F32, 1);
        for kind in TRANSFERS {
            assert_eq!(bytes(transfer(x.clone(), &world, kind).unwrap()), bytes(x.clone()));
        }
        assert!(log.lock().unwrap().is_empty());
    });
}
