//! Groups made out of groups: who is in them, that they work, and what ends which.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::thread;
use std::time::Duration;

use bonfire_collective::{
    CollectiveError, ConnectError, GroupOptions, ProcessGroup, Rank, ReduceOp, TransportKind,
};
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{connected, local, on_hosts, processes};

fn options() -> GroupOptions {
    GroupOptions {
        timeout: Duration::from_secs(100),
        chunk_bytes: 320,
        ..GroupOptions::default()
    }
}

fn over(transport: TransportKind) -> GroupOptions {
    GroupOptions {
        transport: Some(transport),
        ..options()
    }
}

/// The same body on threads over local memory and over every transport between processes.
fn everywhere<R: Send>(
    world_size: u32,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<(String, Vec<R>)> {
    let mut results = vec![("local".to_owned(), local(world_size, options(), &body))];
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let ranks = connected(world_size, over(transport), &body);
        results.push((transport.to_string(), ranks));
    }
    results
}

/// All ranks add their ranks in the job.
fn sum_of_members(group: &ProcessGroup) -> u32 {
    let mut sum = vec![group.world_rank(group.rank()).get(); 1000];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert!(sum.iter().all(|element| *element == sum[0]));
    sum[0]
}

fn members(group: &ProcessGroup) -> Vec<u32> {
    group.members().iter().map(|rank| rank.get()).collect()
}

#[test]
fn even_and_odd_ranks_form_two_groups() {
    for (transport, ranks) in everywhere(5, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        assert_eq!(half.rank().get(), me / 2);
        assert_eq!(half.world_rank(half.rank()), world.rank());
        // The world goes on, and outlives nothing: the part needs it no more.
        world.barrier().unwrap();
        drop(world);
        (members(&half), sum_of_members(&half), half.number())
    }) {
        let number = |rank: usize| ranks[rank].2;
        for (rank, (members, sum, _)) in ranks.iter().enumerate() {
            let (expected, total) = if rank % 2 == 0 {
                (vec![0, 2, 4], 6)
            } else {
                (vec![1, 3], 4)
            };
            assert_eq!((members, *sum), (&expected, total), "{transport}");
            assert_eq!(number(rank), number(rank % 2), "{transport}");
        }
        assert!(number(0) != number(1) && number(0) * number(1) != 0);
    }
}

#[test]
fn keys_order_the_ranks_and_equal_keys_keep_their_order() {
    for (transport, ranks) in everywhere(4, |world| {
        let me = i64::from(world.rank().get());
        let reversed = world.split(Some(9), -me).unwrap().unwrap();
        let swapped = world.split(Some(0), (me / 2 + 1) % 2).unwrap().unwrap();
        assert_eq!(sum_of_members(&reversed) + sum_of_members(&swapped), 12);
        (members(&reversed), members(&swapped))
    }) {
        for (reversed, swapped) in ranks {
            assert_eq!(reversed, [3, 2, 1, 0], "{transport}");
            assert_eq!(swapped, [2, 3, 0, 1], "{transport}");
        }
    }
}

#[test]
fn a_rank_without_a_color_takes_part_and_gets_nothing() {
    for (transport, ranks) in everywhere(4, |world| {
        let color = (world.rank().get() % 3 != 0).then_some(7);
        let group = world.split(color, 0).unwrap();
        let nobody = world.split(None, 0).unwrap();
        assert!(nobody.is_none());
        world.barrier().unwrap();
        group.map(|group| (members(&group), sum_of_members(&group)))
    }) {
        let inside = Some((vec![1, 2], 3));
        assert_eq!(ranks, [None, inside.clone(), inside, None], "{transport}");
    }
}

#[test]
fn a_part_can_be_split_again() {
    for (transport, ranks) in everywhere(6, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), -i64::from(me)).unwrap().unwrap();
        let color = (half.rank().get() < 2).then_some(3);
        let pair = half.split(color, -1).unwrap();
        let alone = half.split(Some(half.rank().get()), 0).unwrap().unwrap();
        assert_eq!(sum_of_members(&alone), me);
        let pair = pair.map(|pair| {
            assert_eq!(pair.world_rank(pair.rank()).get(), me);
            (members(&pair), sum_of_members(&pair))
        });
        (pair, [world.number(), half.number(), alone.number()])
    }) {
        let (pairs, numbers): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let (even, odd) = (Some((vec![4, 2], 6)), Some((vec![5, 3], 8)));
        assert_eq!(
            pairs,
            [None, None, even.clone(), odd.clone(), even, odd],
            "{transport}"
        );
        let mut alone: Vec<u32> = numbers.iter().map(|numbers| numbers[2]).collect();
        alone.extend([numbers[0][0], numbers[0][1], numbers[1][1]]);
        alone.sort_unstable();
        alone.dedup();
        assert_eq!(
            alone.len(),
            6 + 3,
            "{transport}: every group has its own number"
        );
    }
}

#[test]
fn a_group_of_one_splits_into_itself() {
    for (_, ranks) in everywhere(1, |world| {
        let again = world.split(Some(u32::MAX), i64::MIN).unwrap().unwrap();
        check_all(&again, Bits::Canonical)
    }) {
        assert_eq!(ranks.len(), 1);
    }
}

#[test]
fn several_groups_work_at_once_on_several_threads_of_a_rank() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        let pair = world.split(Some(me / 2), 0).unwrap().unwrap();
        let groups = [&world, &half, &pair];
        let total = |group: &ProcessGroup| -> u32 { (0..40).map(|_| sum_of_members(group)).sum() };
        thread::scope(|scope| {
            let threads = groups.map(|group| scope.spawn(move || total(group)));
            // One of them is split while the others work.
            let threads = threads.map(|thread| thread.join().unwrap());
            let inner = half.split(Some(0), 0).unwrap().unwrap();
            let outer = scope.spawn(move || total(&inner));
            assert_eq!(total(&pair), threads[2]);
            assert_eq!(outer.join().unwrap(), threads[1]);
            threads
        })
    }) {
        for (rank, sums) in (0..).zip(ranks) {
            let half = if rank % 2 == 0 { 2 } else { 4 };
            let pair = if rank < 2 { 1 } else { 5 };
            assert_eq!(sums, [6 * 40, half * 40, pair * 40]);
        }
    }
}

#[test]
fn groups_can_be_split_at_once() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        let pair = world.split(Some(me / 2), 0).unwrap().unwrap();
        let split = |group: &ProcessGroup| {
            let parts: Vec<_> = (0..5)
                .map(|_| group.split(Some(0), 0).unwrap().unwrap())
                .collect();
            for part in &parts {
                assert_eq!(sum_of_members(part), sum_of_members(group));
            }
            parts.iter().map(ProcessGroup::number).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let threads = [&half, &pair].map(|group| scope.spawn(move || split(group)));
            threads.map(|thread| thread.join().unwrap()).concat()
        })
    }) {
        for mut numbers in ranks {
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 10);
        }
    }
}

#[test]
fn a_list_of_ranks_makes_a_group_in_its_order() {
    for (transport, ranks) in everywhere(4, |world| {
        let group = world.subgroup(&[3, 0, 2].map(Rank::new)).unwrap();
        let nobody = world.subgroup(&[]).unwrap();
        assert!(nobody.is_none());
        group.map(|group| (members(&group), sum_of_members(&group)))
    }) {
        let inside = Some((vec![3, 0, 2], 5));
        let expected = [inside.clone(), None, inside.clone(), inside];
        assert_eq!(ranks, expected, "{transport}");
    }
}

fn connect_error(error: &CollectiveError) -> &ConnectError {
    match error {
        CollectiveError::Connect(error) => error,
        other => panic!("expected an error of set-up, got {other:?}"),
    }
}

#[test]
fn a_bad_list_is_refused_and_the_group_goes_on() {
    for (transport, _) in everywhere(3, |world| {
        let subgroup = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank::new).collect();
            world.subgroup(&ranks).unwrap_err()
        };
        let error = subgroup(&[0, 3]);
        assert!(
            matches!(connect_error(&error), ConnectError::NoSuchRank { rank, .. } if rank.get() == 3)
        );
        let error = subgroup(&[1, 2, 1]);
        assert!(
            matches!(connect_error(&error), ConnectError::NamedTwice { rank } if rank.get() == 1)
        );
        // Different lists, one of them without this rank.
        let error = subgroup(&[world.rank().get() % 2]);
        let ConnectError::Disagree { what, .. } = connect_error(&error) else {
            panic!("{error}");
        };
        assert_eq!(*what, "called");
        world.barrier().unwrap();
    }) {
        assert!(!transport.is_empty());
    }
}

#[test]
fn ranks_of_a_color_must_have_the_same_options() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        // The even ranks agree with each other, the odd ones do not.
        let chunk_bytes = if me == 3 { 640 } else { 1280 };
        let options = GroupOptions {
            chunk_bytes,
            ..options()
        };
        let half = world.split_with(Some(me % 2), 0, options);
        world.barrier().unwrap();
        half.map(|half| sum_of_members(&half.unwrap()))
    }) {
        for (rank, result) in ranks.iter().enumerate() {
            match result {
                Ok(sum) => assert_eq!((rank % 2, *sum), (0, 2)),
                Err(error) => {
                    let error = connect_error(error);
                    let is_chunk = matches!(error, ConnectError::Disagree { what, .. }
                        if *what == "chunk_bytes");
                    assert!(rank % 2 == 1 && is_chunk, "{error}");
                }
            }
        }
    }
}

#[test]
fn parts_that_cannot_connect_are_an_error_on_all_their_ranks_only() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let hosts = ["a", "a", "b", "b"];
        let options = GroupOptions {
            transport: None,
            ..options()
        };
        let ranks = on_hosts(&hosts, options.clone(), |world| {
            let me = world.rank().get();
            let options = GroupOptions {
                transport: Some(transport),
                ..options.clone()
            };
            // Ranks 0 and 1 share a host; ranks 2 and 3 are to be joined by rank 0 of another.
            let inside = world.split_with(Some(me / 2), 0, options.clone());
            let across = world.split_with(Some(me % 2), 0, options);
            world.barrier().unwrap();
            let works = |group: Result<Option<ProcessGroup>, CollectiveError>| {
                group.map(|group| sum_of_members(&group.unwrap()))
            };
            (works(inside), works(across))
        });
        for (inside, across) in ranks {
            inside.unwrap();
            match transport {
                TransportKind::Tcp => assert!(across.is_ok()),
                _ => {
                    let error = across.unwrap_err();
                    let refused = matches!(
                        connect_error(&error),
                        ConnectError::Transport {
                            transport: TransportKind::Shm,
                            ..
                        }
                    );
                    assert!(refused, "{error}");
                }
            }
        }
    }
}

#[test]
fn the_hosts_of_a_job_are_found() {
    let hosts = ["b", "a", "b", "b", "a"];
    let options = GroupOptions {
        transport: None,
        ..options()
    };
    let ranks = on_hosts(&hosts, options, |world| {
        assert_eq!(world.topology().hosts(), [0, 1, 0, 0, 1]);
        assert_eq!(world.topology().leaders(), [0, 1].map(Rank::new));
        let host = world.split_by_host().unwrap();
        assert_eq!(host.topology().host_count(), 1);
        assert_eq!(host.rank().get(), world.topology().local_rank(world.rank()));
        let leaders = world.split_leaders().unwrap();
        if let Some(leaders) = &leaders {
            assert_eq!(leaders.topology().hosts(), [0, 1]);
            assert_eq!(sum_of_members(leaders), 1);
        }
        // Two levels add up to what one does.
        let mut data = [sum_of_members(&host)];
        if let Some(leaders) = &leaders {
            leaders.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        }
        host.broadcast(&mut data, Rank::new(0)).unwrap();
        assert_eq!(data[0], 10);
        (members(&host), leaders.is_some())
    });
    let (b, a) = (vec![0, 2, 3], vec![1, 4]);
    let expected = [
        (b.clone(), true),
        (a.clone(), true),
        (b.clone(), false),
        (b, false),
        (a, false),
    ];
    assert_eq!(ranks, expected);
}

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
            assert_eq!(
                (rank.get(), cause.as_str()),
                (1, "no more disk"),
                "{transport}"
            );
        }
    }
}

#[test]
fn the_end_of_one_group_is_not_that_of_another() {
    for (transport, results) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
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
            assert_eq!(
                (pair, world),
                (if rank < 2 { 1 } else { 5 }, 6),
                "{transport}"
            );
            assert_eq!(heard.is_some(), rank % 2 == 1);
            if let Some(heard) = heard {
                assert!(heard.starts_with(error), "{transport}: {heard}");
                assert!(
                    heard.contains("is rank 3 of the job"),
                    "{transport}: {heard}"
                );
            }
        }
    }
}

#[test]
fn a_panicking_thread_ends_all_groups_that_it_is_in() {
    for (transport, results) in everywhere(3, |world| {
        let me = world.rank().get();
        let others = world.subgroup(&[0, 1].map(Rank::new)).unwrap();
        let last = world.subgroup(&[2, 1].map(Rank::new)).unwrap();
        world.barrier().unwrap();
        if me == 2 {
            let broken = std::panic::AssertUnwindSafe(move || {
                let _owned = (world, last);
                panic!("an index is out of bounds (wanted by this test)");
            });
            std::panic::catch_unwind(broken).unwrap_err();
            return vec![];
        }
        sum_of_members(&others.unwrap());
        let groups = [Some(world), last];
        let error = |group: ProcessGroup| group.barrier().unwrap_err().to_string();
        groups.into_iter().flatten().map(error).collect()
    }) {
        assert_eq!(results[0], ["rank 2 failed: it panicked"], "{transport}");
        assert_eq!(results[1][0], "rank 2 failed: it panicked", "{transport}");
        let last = &results[1][1];
        assert!(
            last.starts_with("rank 0 failed: it panicked"),
            "{transport}: {last}"
        );
        assert!(
            last.ends_with("is rank 2 of the job)"),
            "{transport}: {last}"
        );
    }
}

/// Rank 0 does something else while the others split.
fn check_mixed(other: impl Fn(&ProcessGroup) -> Result<(), CollectiveError> + Sync) {
    for (transport, errors) in everywhere(3, |world| {
        world.barrier().unwrap();
        let result = match world.rank().get() {
            0 => other(&world),
            _ => world.split(Some(0), 0).map(drop),
        };
        // A rank whose own part needed nobody learns of it at its next operation.
        result.and_then(|()| world.barrier()).unwrap_err()
    }) {
        for error in errors {
            match error {
                CollectiveError::Mismatch(mismatch) => {
                    assert_ne!(mismatch.operation, mismatch.other_operation);
                }
                // The other operation looked like a split until its content was read.
                CollectiveError::PeerFailed { cause, .. } => {
                    assert!(
                        cause.contains("in another operation"),
                        "{transport}: {cause}"
                    );
                }
                other => panic!("{transport}: {other}"),
            }
        }
    }
}

#[test]
fn a_split_does_not_match_another_operation() {
    check_mixed(ProcessGroup::barrier);
    check_mixed(|group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum));
    check_mixed(|group| group.all_gather(&[1_u8; 8]).map(drop));
    // As long as what the ranks of a split say to one another.
    check_mixed(|group| group.all_gather(&[b'7'; 4093]).map(drop));
    check_mixed(|group| group.all_gather(&[0_u8; 4093]).map(drop));
}

#[test]
fn parts_conform_like_groups_of_their_size() {
    let expected = local(3, options(), |group| check_all(&group, Bits::Canonical))[0];
    for (transport, digests) in everywhere(4, |world| {
        let color = (world.rank().get() != 1).then_some(0);
        let part = world.split(color, -i64::from(world.rank().get())).unwrap();
        part.map(|part| check_all(&part, Bits::Canonical))
    }) {
        let expected = [Some(expected), None, Some(expected), Some(expected)];
        assert_eq!(digests, expected, "{transport}");
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
fn the_death_of_a_process_ends_all_groups_that_it_is_in_and_no_other() {
    for transport in ["shm", "unix", "tcp"] {
        let ranks = processes_say(transport, "death");
        for (rank, (ended_well, said)) in ranks[..3].iter().enumerate() {
            assert!(ended_well, "{transport}: {said}");
            assert!(said.contains("world: rank 3 failed"), "{transport}: {said}");
            assert!(said.contains("others: ok"), "{transport}: {said}");
            let pair = if rank == 2 {
                "pair: rank 0 failed"
            } else {
                "pair: ok"
            };
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
