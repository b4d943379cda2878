//! Groups over NCCL that go wrong. They run where a driver and NCCL are, or stand-ins for both.

use std::sync::Barrier;
use std::time::Duration;

use bonfire_collective::{CollectiveError, DType, Rank};
use bonfire_gpu::{CudaGroupError, Driver, Elements, NcclBuffer};
use bonfire_testkit::Watchdog;

use super::*;

const LIMIT: Duration = Duration::from_secs(120);
const COUNT: usize = 1000;

/// Runs `body` on two ranks with a group over NCCL and a buffer of it; nothing where that cannot be.
fn on_two(timeout: Duration, body: impl Fn(&NcclGroup, &NcclBuffer) + Sync) {
    let devices = Driver::load().and_then(|driver| driver.devices());
    let shares = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
    let devices = match (devices, Nccl::load()) {
        (Ok(devices), Ok(_)) => devices.len(),
        (Err(error), _) | (_, Err(error)) => return println!("skipped: {error}"),
    };
    if devices < 2 && !shares {
        return println!("skipped: one device, and NCCL_MULTI_RANK_GPU_ENABLE is not 1");
    }
    let _watchdog = Watchdog::start("groups over NCCL", LIMIT);
    let options = CudaOptions::default().with_timeout(LIMIT);
    on_threads(2, &options, |group| {
        let process = group.process_group().clone();
        let over_nccl = NcclGroup::new(process, group.context(), timeout)?;
        let buffer = over_nccl.allocate(4 * COUNT)?;
        // The first operation connects the ranks.
        over_nccl.barrier()?;
        over_nccl.synchronize()?;
        over_nccl.process_group().barrier()?;
        body(&over_nccl, &buffer);
        Ok(())
    })
    .unwrap();
}

fn sum(group: &NcclGroup, buffer: &NcclBuffer) -> Result<(), CudaGroupError> {
    let elements = Elements::first(DType::F32, COUNT);
    group.all_reduce(buffer, &elements, ReduceOp::Sum)?;
    group.synchronize()
}

#[test]
fn a_rank_that_does_not_come_is_a_timeout_on_all() {
    // This bounds the set-up as well.
    on_two(Duration::from_secs(5), |group, buffer| {
        if group.rank() == Rank::new(0) {
            let error = sum(group, buffer).unwrap_err();
            assert!(
                matches!(error, CudaGroupError::Timeout { rank, .. } if rank == Rank::new(0)),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains("all_reduce of f32 x 1000"), "{text}");
        } else {
            while group.process_group().failure().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // The group is over for every operation, on every rank.
        assert!(matches!(sum(group, buffer), Err(CudaGroupError::Collective(_))));
    });
}

#[track_caller]
fn assert_reports_abort(ended: &Result<(), CudaGroupError>) {
    match ended {
        Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, cause, .. })) => {
            assert_eq!(*rank, Rank::new(1));
            assert!(cause.contains("the test says so"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_abort_frees_who_waits_on_the_device() {
    on_two(LIMIT, |group, buffer| {
        if group.rank() == Rank::new(1) {
            return group.abort("the test says so");
        }
        assert_reports_abort(&sum(group, buffer));
    });
}

/// The rank itself comes to no wait that knows of failures: its guard frees it.
#[test]
fn an_abort_frees_who_is_in_a_call_of_the_driver() {
    let queued = Barrier::new(2);
    on_two(LIMIT, |group, buffer| {
        if group.rank() == Rank::new(1) {
            queued.wait();
            std::thread::sleep(Duration::from_millis(100));
            return group.abort("the test says so");
        }
        let elements = Elements::first(DType::F32, COUNT);
        group.all_reduce(buffer, &elements, ReduceOp::Sum).unwrap();
        queued.wait();
        group.context().synchronize().unwrap();
        assert_reports_abort(&group.synchronize());
    });
}

#[test]
fn what_cannot_be_done_leaves_the_group_as_it_was() {
    on_two(LIMIT, |group, buffer| {
        let elements = Elements::first(DType::F32, COUNT);
        let me = group.rank();
        let output = group.allocate(4 * COUNT).unwrap();
        let three = Elements::first(DType::F32, 3);
        for refused in [
            group.gather(buffer, &elements, Rank::new(2)),
            group.broadcast(buffer, &elements, Rank::new(2)),
            group.send(buffer, &elements, me),
            group.recv(buffer, &elements, Rank::new(2)),
            group.exchange(buffer, &three, Rank::new(1 - me.get())),
            group.all_to_all(buffer, &output, &three),
        ] {
            assert!(matches!(refused, Err(CudaGroupError::Usage(_))), "{refused:?}");
        }
        let bits = group.all_reduce(buffer, &Elements::first(DType::I32, 1), ReduceOp::Xor);
        assert!(matches!(bits, Err(CudaGroupError::NotInNccl { .. })));
        let long = Elements::first(DType::F32, COUNT + 1);
        let long = group.scatter(buffer, &long, Rank::new(0));
        assert!(matches!(long, Err(CudaGroupError::TooSmall { .. })));

        group.write(buffer, 0, &[2.5_f32; COUNT]).unwrap();
        sum(group, buffer).unwrap();
        let mut found = [0.0_f32; COUNT];
        group.read(buffer, 0, &mut found).unwrap();
        assert_eq!(found, [5.0; COUNT]);
        group.release(output).unwrap();
    });
}
