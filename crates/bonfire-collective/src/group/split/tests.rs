use std::sync::Barrier;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::*;
use crate::WorldSize;

/// A limit for hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Ends the process if the ranks do not come to an end.
fn on_ranks<R: Send>(count: u32, body: impl Fn(ProcessGroup) -> R + Sync) -> Vec<R> {
    let (alive, watched) = channel::<()>();
    thread::spawn(move || {
        if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("watchdog: ranks hang");
            std::process::abort();
        }
    });
    // Longer than the limit: no wait ends by its deadline.
    let options = GroupOptions::default().with_timeout(10 * LIMIT);
    let groups = ProcessGroup::local(WorldSize::new(count).unwrap(), options).unwrap();
    let ends = thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        let ends = ranks.into_iter().map(|rank| rank.join());
        ends.map(|end| end.expect("no rank panics")).collect()
    });
    drop(alive);
    ends
}

fn half_of(world: &ProcessGroup) -> ProcessGroup {
    let half = world.split(Some(world.rank().get() % 2), 0).unwrap();
    half.expect("every rank has a color")
}

/// The error of a group that is about to fail.
fn waited(group: &ProcessGroup) -> String {
    loop {
        if let Err(error) = group.barrier() {
            return error.to_string();
        }
    }
}

/// Returns when all ranks have their groups. To others the failure may come first that a rank then begins.
fn meet(world: &ProcessGroup) {
    let _ = world.barrier();
}

#[test]
fn the_end_of_a_part_is_that_of_its_parent_and_of_its_siblings() {
    let errors = on_ranks(4, |world| {
        let half = half_of(&world);
        meet(&world);
        match world.rank().get() {
            3 => {
                half.abort("the odd ones are tired");
                [waited(&half), waited(&world)]
            }
            1 => [waited(&half), waited(&world)],
            0 => [waited(&world), waited(&half)],
            // It waits for rank 0, which waits in the parent.
            _ => [waited(&half), waited(&world)],
        }
    });
    let named = "rank 3 failed: the odd ones are tired";
    for rank in [0, 2] {
        let [first, second] = &errors[rank];
        let (world, half) = if rank == 0 { (first, second) } else { (second, first) };
        assert_eq!(world, named);
        assert_eq!(half, "rank 3 of the job failed: the odd ones are tired");
    }
    for rank in [1, 3] {
        let [half, world] = &errors[rank];
        let own = "rank 1 failed: the odd ones are tired (rank 1 of group";
        assert!(half.starts_with(own), "{half}");
        assert!(half.ends_with("is rank 3 of the job)"), "{half}");
        assert_eq!(world, named);
    }
}

#[test]
fn the_end_of_a_group_is_that_of_its_parts_and_of_theirs() {
    let errors = on_ranks(4, |world| {
        let half = half_of(&world);
        let pair = half.split(Some(0), 0).unwrap().unwrap();
        meet(&world);
        if world.rank().get() == 0 {
            world.abort("no more disk");
            return vec![];
        }
        vec![waited(&pair), waited(&half), waited(&world)]
    });
    for (rank, errors) in errors.iter().enumerate().skip(1) {
        let culprit = if rank == 2 { "rank 0" } else { "rank 0 of the job" };
        let expected = format!("{culprit} failed: no more disk");
        assert_eq!(errors[..2], [expected.clone(), expected], "rank {rank}");
        assert_eq!(errors[2], "rank 0 failed: no more disk", "rank {rank}");
    }
}

#[test]
fn who_panics_in_a_part_is_named_in_its_parent() {
    let errors = on_ranks(3, |world| {
        let part = world.subgroup(&[2, 1].map(Rank::new)).unwrap();
        meet(&world);
        if world.rank().get() == 2 {
            let failing = part.unwrap().background((), |_, ()| panic!("on purpose"));
            let _ = failing.wait();
        }
        waited(&world)
    });
    for error in errors {
        assert_eq!(error, "rank 2 failed: it panicked in the background");
    }
}

#[test]
fn a_detached_part_and_its_parent_live_by_themselves() {
    let errors = on_ranks(4, |world| {
        let whole = || world.detached().split(Some(0), 0).unwrap().unwrap();
        let (first, second) = (whole(), whole());
        let part_of_first = half_of(&first);
        meet(&world);
        if world.rank().get() == 1 {
            first.abort("it was only tried");
        }
        let error = waited(&part_of_first);
        for group in [&world, &second] {
            group.barrier().unwrap();
            assert!(group.failure().is_none());
        }
        if world.rank().get() == 2 {
            world.abort("no more disk");
        }
        assert_eq!(waited(&world), "rank 2 failed: no more disk");
        second.barrier().unwrap();
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        let named = if rank % 2 == 1 { "rank 0 failed: " } else { "rank 1 of the job failed: " };
        assert!(error.starts_with(&format!("{named}it was only tried")), "{error}");
    }
}

#[test]
fn of_two_aborts_at_once_one_is_named_in_all_groups() {
    for _ in 0..50 {
        let start = Barrier::new(2);
        let errors = on_ranks(2, |world| {
            let same = || world.split(Some(0), 0).unwrap().unwrap();
            let groups = [world.clone(), same(), same()];
            world.barrier().unwrap();
            start.wait();
            let me = world.rank();
            groups[1 + me.index()].abort(&format!("abort of {me}"));
            // This rank's next one changes nothing.
            world.abort("what follows from it");
            groups.map(|group| waited(&group))
        });
        let first = &errors[0][0];
        let possible = [0, 1].map(|rank| format!("rank {rank} failed: abort of {rank}"));
        assert!(possible.contains(first), "{first}");
        for error in errors.iter().flatten() {
            assert_eq!(error, first);
        }
    }
}

#[test]
fn a_refused_split_ends_nothing() {
    on_ranks(2, |world| {
        let half = half_of(&world);
        world.subgroup(&[Rank::new(7)]).unwrap_err();
        // Only one of the ranks means it to be detached.
        let handle = if world.rank().get() == 0 { world.detached() } else { world.clone() };
        let error = handle.split(Some(0), 0).unwrap_err().to_string();
        assert!(error.contains("detached split"), "{error}");
        half.barrier().unwrap();
        world.barrier().unwrap();
    });
}
