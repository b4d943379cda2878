//! What ends which of several groups.

use std::path::Path;

use bonfire_collective::{CollectiveError, ProcessGroup, Rank};
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{local, processes};

use super::{everywhere, options, sum_of_members};

#[test]
fn a_failed_group_cannot_be_split() {
    for (transport, errors) in everywhere(3, |world| {
        let met = world.barrier();
        if world.rank().get() == 1 {
            met.unwrap();
            world.abort("no more disk");
        }
        world.split(Some(0), 0).unwrap_err()
    }) {
        for error in errors {
            let CollectiveError::PeerFailed { rank, cause } = &error else {
                panic!("{transport}: {error}");
            };
            assert_eq!((rank.get(), cause.as_str()), (1, "no more disk"), "{transport}");
        }
    }
}

#[test]
fn the_end_of_a_detached_group_is_not_that_of_another() {
    for (transport, results) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.detached().split(Some(me % 2), 0);
        let half = half.unwrap().unwrap();
        let pair = world.split(Some(me / 2), 0).unwrap().unwrap();
        half.barrier().ok();
        if me == 3 {
            half.abort("the odd ones are tired");
        }
        let error = (me % 2 == 1).then(|| {
            loop {
                if let Err(error) = half.barrier() {
                    break error.to_string();
                }
            }
        });
        world.barrier().unwrap();
        (sum_of_members(&pair), sum_of_members(&world), error)
    }) {
        let error = "rank 1 failed: the odd ones are tired (rank 1 of group";
        for (rank, (pair, world, heard)) in results.into_iter().enumerate() {
            assert_eq!((pair, world), (if rank < 2 { 1 } else { 5 }, 6), "{transport}");
            assert_eq!(heard.is_some(), rank % 2 == 1);
            if let Some(heard) = heard {
                assert!(heard.starts_with(error), "{transport}: {heard}");
                assert!(heard.contains("is rank 3 of the job"), "{transport}: {heard}");
            }
        }
    }
}

#[test]
fn groups_that_were_made_from_one_another_end_together() {
    for (transport, results) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        let pair = half.split(Some(0), 0).unwrap().unwrap();
        // To others the failure may come first.
        let _ = world.barrier();
        if me == 3 {
            pair.abort("the odd ones are tired");
        }
        // Those of an even rank are notified by nobody who is in them.
        let groups = if me == 0 { [&world, &pair, &half] } else { [&half, &pair, &world] };
        let error = |group: &ProcessGroup| {
            loop {
                if let Err(error) = group.barrier() {
                    break (group.number(), error.to_string());
                }
            }
        };
        (world.number(), groups.map(error))
    }) {
        for (rank, (world, errors)) in results.into_iter().enumerate() {
            for (group, error) in errors {
                let named = match (group == world, rank % 2) {
                    (true, _) => "rank 3 failed: ",
                    (false, 0) => "rank 3 of the job failed: ",
                    (false, _) => "rank 1 failed: ",
                };
                let expected = format!("{named}the odd ones are tired");
                assert!(error.starts_with(&expected), "{transport}, rank {rank}: {error}");
            }
        }
    }
}

#[test]
fn whoever_has_left_the_parent_hears_of_its_end_in_a_part() {
    for (transport, errors) in everywhere(3, |world| {
        let me = world.rank().get();
        let part = |ranks: [u32; 2]| world.subgroup(&ranks.map(Rank::new)).unwrap();
        let (first, second) = (part([0, 1]), part([1, 2]));
        drop(world);
        let groups: Vec<ProcessGroup> = [first, second].into_iter().flatten().collect();
        let last = groups.last().unwrap();
        if me == 0 {
            last.abort("no more disk");
            return String::new();
        }
        loop {
            if let Err(error) = last.barrier() {
                break error.to_string();
            }
        }
    }) {
        for error in &errors[1..] {
            assert_eq!(error, "rank 0 of the job failed: no more disk", "{transport}");
        }
    }
}

#[test]
fn a_panicking_thread_ends_all_groups_that_it_is_in() {
    for (transport, results) in everywhere(3, |world| {
        let me = world.rank().get();
        let others = world.subgroup(&[0, 1].map(Rank::new)).unwrap();
        let last = world.subgroup(&[2, 1].map(Rank::new)).unwrap();
        if let Some(others) = others {
            sum_of_members(&others);
        }
        // The others may still be in it when rank 2, which is through, panics.
        let met = world.barrier();
        if me == 2 {
            met.unwrap();
            let broken = std::panic::AssertUnwindSafe(move || {
                let _owned = (world, last);
                panic!("an index is out of bounds (wanted by this test)");
            });
            std::panic::catch_unwind(broken).unwrap_err();
            return vec![];
        }
        let groups = [Some(world), last];
        let error = |group: ProcessGroup| group.barrier().unwrap_err().to_string();
        groups.into_iter().flatten().map(error).collect()
    }) {
        assert_eq!(results[0], ["rank 2 failed: it panicked"], "{transport}");
        assert_eq!(results[1][0], "rank 2 failed: it panicked", "{transport}");
        let last = &results[1][1];
        assert!(last.starts_with("rank 0 failed: it panicked"), "{transport}: {last}");
        assert!(last.ends_with("is rank 2 of the job)"), "{transport}: {last}");
    }
}

/// What each of four processes printed.
fn processes_say(transport: &str, scenario: &str) -> Vec<(bool, String)> {
    let program = Path::new(env!("CARGO_BIN_EXE_split-rank"));
    processes(program, &[transport, scenario], 4)
        .into_iter()
        .map(|output| {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success(), format!("{said}{errors}"))
        })
        .collect()
}

#[test]
fn parts_of_processes_conform_like_groups_of_their_size() {
    let expected = local(2, options(), |group| check_all(&group, Bits::Canonical))[0];
    for transport in ["shm", "unix", "tcp"] {
        for (ended_well, said) in processes_say(transport, "conform") {
            assert!(ended_well, "{transport}: {said}");
            assert_eq!(said.trim(), format!("{expected:016x}"), "{transport}");
        }
    }
}

#[test]
fn the_death_of_a_process_ends_all_groups_that_share_its_fate_and_no_other() {
    for transport in ["shm", "unix", "tcp"] {
        let ranks = processes_say(transport, "death");
        for (rank, (ended_well, said)) in ranks[..3].iter().enumerate() {
            assert!(ended_well, "{transport}: {said}");
            assert!(said.contains("world: rank 3 failed"), "{transport}: {said}");
            let others = "others: rank 3 of the job failed";
            assert!(said.contains(others), "{transport}: {said}");
            assert!(said.contains("detached: ok"), "{transport}: {said}");
            let pair =
                if rank == 2 { "pair: rank 0 failed" } else { "pair: rank 3 of the job failed" };
            assert!(said.contains(pair), "{transport}: {said}");
        }
        assert!(!ranks[3].0);
    }
}

#[test]
fn parts_leave_nothing_open() {
    for transport in ["shm", "tcp"] {
        for (ended_well, said) in processes_say(transport, "many") {
            assert!(ended_well, "{transport}: {said}");
            assert_eq!(said.trim(), "0", "{transport}");
        }
    }
}
