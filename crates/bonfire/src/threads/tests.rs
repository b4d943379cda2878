use bonfire_collective::{CollectiveError, ReduceOp};
use bonfire_plan::Axis;

use super::*;
use crate::error::Reporter;

fn on_cpu(ranks: u32) -> SpawnOptions {
    SpawnOptions {
        world_size: WorldSize::new(ranks).unwrap(),
        device: DeviceKind::Cpu,
        group: GroupOptions::default(),
    }
}

/// Runs three ranks on the CPU that all-reduce until rank 1 misbehaves.
fn three(misbehave: impl Fn() -> Result<u32> + Sync) -> Result<Vec<u32>> {
    let options = on_cpu(3);
    spawn_with(&options, |world| {
        for step in 0..20 {
            if world.rank().get() == 1 && step == 10 {
                return misbehave();
            }
            world.group().all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)?;
        }
        Ok(world.rank().get())
    })
}

#[test]
fn results_come_in_rank_order() {
    let options = on_cpu(4);
    let ranks = spawn_with(&options, |world| {
        let name = thread::current().name().map(str::to_owned);
        assert_eq!(name, Some(format!("rank-{}", world.rank())));
        world.group().barrier()?;
        Ok::<_, Error>(world.rank().get())
    });
    assert_eq!(ranks.unwrap(), [0, 1, 2, 3]);
}

#[test]
fn the_error_is_that_of_the_rank_that_failed_by_itself() {
    for _ in 0..20 {
        let error = three(|| Err(Error::Usage("no more data".to_owned()))).unwrap_err();
        assert_eq!(format!("{error:?}"), "rank 1 failed: no more data");
    }
}

#[test]
fn a_panic_ends_all_ranks_and_is_named() {
    let error = three(|| panic!("index out of range")).unwrap_err();
    assert_eq!(format!("{error:?}"), "rank 1 panicked: index out of range");
}

#[test]
fn a_pass_of_the_program_s_own_that_a_layer_ends_is_no_panic() {
    let options = on_cpu(2);
    let error = spawn_with(&options, |world| {
        let mesh = world.mesh("tp=2")?;
        if world.is_main() {
            // As a divided layer does in a forward pass.
            let cause = "no peer".to_owned();
            mesh.sub(Axis::Tp).fail(CollectiveError::FailedElsewhere { rank: None, cause });
            std::panic::resume_unwind(Box::new("a layer failed".to_owned()));
        }
        world.group().barrier().map_err(Error::from)
    });
    let error = format!("{:?}", error.unwrap_err());
    assert!(error.contains("no peer") && !error.contains("panicked"), "{error}");
}

#[test]
fn the_rank_that_reports_an_error_of_all_is_the_one_that_failed() {
    let options = on_cpu(3);
    let on_writer = |world: &World| match world.rank().get() {
        2 => {
            thread::sleep(std::time::Duration::from_millis(200));
            Error::Usage("the disk is full".to_owned())
        }
        _ => Error::ReportedElsewhere(Reporter { rank: Rank::new(2) }),
    };
    let error = spawn_with(&options, |world| Err::<(), _>(on_writer(&world))).unwrap_err();
    assert_eq!(format!("{error:?}"), "rank 2 failed: the disk is full");
}

#[test]
fn a_rank_that_leaves_early_fails_the_others() {
    let error = three(|| Ok(1)).unwrap_err();
    let Error::Rank { source, .. } = &error else { panic!("{error:?}") };
    let source = source.downcast_ref::<Error>();
    let is_named = matches!(
        source,
        Some(Error::Collective(CollectiveError::PeerFailed { rank, .. })) if rank.get() == 1
    );
    assert!(is_named, "{error:?}");
}

#[test]
fn no_ranks_are_an_error() {
    let error = spawn(0, |_| Ok::<_, Error>(())).unwrap_err();
    assert!(!format!("{error:?}").contains('\n'), "{error:?}");
}
