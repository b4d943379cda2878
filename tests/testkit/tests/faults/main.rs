//! A failing rank is every rank's error, and the error names it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod meeting;

use std::path::Path;
use std::time::Duration;

use bonfire_collective::{
    CollectiveError, GroupOptions, ProcessGroup, Rank, ReduceOp, TransportKind, read_flight_records,
};
use bonfire_testkit::{connected, local, processes};

fn options() -> GroupOptions {
    GroupOptions::default().with_timeout(Duration::from_secs(100))
}

/// Of the calls that are to expire.
const EXPIRES: Duration = Duration::from_secs(2);

/// The same body on threads over local memory and over every transport between processes.
fn on_all_transports<R: Send>(
    world_size: u32,
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<(String, Vec<R>)> {
    let mut results = vec![("local".to_owned(), local(world_size, options.clone(), &body))];
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let options = options.clone().with_transport(Some(transport));
        results.push((transport.to_string(), connected(world_size, options, &body)));
    }
    results
}

/// Runs different operations on rank 0 and on the others and expects all ranks to be notified of two ranks
/// that disagree. Processes that notice at the same moment may name different pairs.
fn check_mismatch(
    name: &str,
    first: impl Fn(&ProcessGroup) -> Result<(), CollectiveError> + Sync,
    second: impl Fn(&ProcessGroup) -> Result<(), CollectiveError> + Sync,
) {
    let results = on_all_transports(3, options(), |group| {
        group.barrier().unwrap();
        let result = if group.rank().get() == 0 { first(&group) } else { second(&group) };
        // A rank whose own part needed nobody learns of it at its next operation.
        result.and_then(|()| group.barrier()).unwrap_err()
    });
    for (transport, errors) in results {
        for error in &errors {
            let CollectiveError::Mismatch(mismatch) = error else {
                panic!("{name} over {transport}: {error}");
            };
            assert_ne!(mismatch.rank, mismatch.other_rank);
            assert_ne!(mismatch.operation, mismatch.other_operation);
            assert!(error.to_string().contains(concat!(file!(), ":")), "no call-site in: {error}");
        }
    }
}

#[test]
fn different_operations_are_named_on_all_ranks() {
    check_mismatch(
        "operation",
        |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
        |group| group.all_gather(&[1.0_f32; 8]).map(drop),
    );
}

#[test]
fn different_counts_are_named_on_all_ranks() {
    for (mine, theirs) in [(7, 8), (0, 8), (100_000, 1), (100_000, 100_001)] {
        check_mismatch(
            "count",
            |group| group.all_reduce(&mut vec![1.0_f32; mine], ReduceOp::Sum),
            |group| group.all_reduce(&mut vec![1.0_f32; theirs], ReduceOp::Sum),
        );
    }
}

#[test]
fn different_types_are_named_on_all_ranks() {
    check_mismatch(
        "dtype",
        |group| group.all_reduce(&mut [1_i32; 8], ReduceOp::Sum),
        |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
    );
}

#[test]
fn different_reductions_are_named_on_all_ranks() {
    check_mismatch(
        "reduce op",
        |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
        |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Mean),
    );
}

#[test]
fn different_roots_are_named_on_all_ranks() {
    check_mismatch(
        "root",
        |group| group.broadcast(&mut [1.0_f32; 8], Rank::new(0)),
        |group| group.broadcast(&mut [1.0_f32; 8], Rank::new(1)),
    );
}

#[test]
fn an_abort_ends_pending_and_future_operations_everywhere() {
    for (transport, errors) in on_all_transports(3, options(), |group| {
        // Rank 1 may be the first to leave it, and then the abort ends it for the others.
        let met = group.barrier();
        if group.rank().get() == 1 {
            met.unwrap();
            group.abort("no more disk");
        }
        let pending = group
            .background(vec![1.0_f32; 1000], |group, data| group.all_reduce(data, ReduceOp::Sum))
            .wait();
        [pending.map(drop).unwrap_err(), group.barrier().unwrap_err()]
    }) {
        for error in errors.iter().flatten() {
            let CollectiveError::PeerFailed { rank, cause } = error else {
                panic!("{transport}: {error}");
            };
            assert_eq!((rank.get(), cause.as_str()), (1, "no more disk"), "{transport}");
        }
    }
}

/// The work behind it comes to its end, too.
#[test]
fn a_panic_in_the_background_ends_the_group_for_all() {
    for (transport, errors) in on_all_transports(3, options(), |group| {
        let first = group.background((), |group, ()| {
            assert!(group.rank().get() != 1, "on purpose");
            group.barrier()
        });
        let second = group.background((), |group, ()| group.barrier());
        [first.wait(), second.wait(), group.barrier()].map(Result::unwrap_err)
    }) {
        for error in errors.iter().flatten() {
            let CollectiveError::PeerFailed { rank, cause } = error else {
                panic!("{transport}: {error}");
            };
            assert_eq!(
                (rank.get(), cause.as_str()),
                (1, "it panicked in the background"),
                "{transport}"
            );
        }
    }
}

/// Work may begin work: it is done at once, in the same turn.
#[test]
fn work_in_the_background_uses_any_handle_of_its_group() {
    for (transport, sums) in on_all_transports(2, options(), |group| {
        let other = group.clone();
        let work = group.background(vec![1], move |group, data| {
            other.all_reduce(data, ReduceOp::Sum)?;
            *data = group
                .background(data.clone(), |group, data| group.all_reduce(data, ReduceOp::Sum))
                .wait()?;
            Ok(())
        });
        work.wait().unwrap()
    }) {
        assert!(sums.iter().all(|sum| *sum == [4]), "{transport}: {sums:?}");
    }
}

#[test]
fn a_panicking_thread_is_its_ranks_failure() {
    for (transport, results) in on_all_transports(3, options(), |group| {
        if let Err(error) = group.barrier() {
            // The others may still be in it when rank 2, which is through, panics.
            assert_ne!(group.rank().get(), 2, "{error}");
            return Some(error.to_string());
        }
        if group.rank().get() == 2 {
            let broken = std::panic::AssertUnwindSafe(move || {
                let _owned = group;
                panic!("an index is out of bounds (wanted by this test)");
            });
            return std::panic::catch_unwind(broken).err().map(|_| String::new());
        }
        group.barrier().err().map(|error| error.to_string())
    }) {
        assert_eq!(results[0].as_deref(), Some("rank 2 failed: it panicked"), "{transport}");
        assert_eq!(results[1].as_deref(), Some("rank 2 failed: it panicked"), "{transport}");
    }
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    for (transport, results) in on_all_transports(2, options(), |group| {
        group.barrier().unwrap();
        if group.rank().get() == 1 {
            return None;
        }
        Some(group.all_reduce(&mut vec![1.0_f32; 1_000_000], ReduceOp::Sum).unwrap_err())
    }) {
        let error = results[0].as_ref().unwrap();
        let CollectiveError::PeerFailed { rank, cause } = error else {
            panic!("{transport}: {error}");
        };
        assert_eq!(rank.get(), 1);
        assert!(cause.contains("left the group"), "{transport}: {cause}");
    }
}

#[test]
fn a_rank_that_leaves_after_its_last_operation_disturbs_nobody() {
    for (transport, results) in on_all_transports(4, options(), |group| {
        let mut data = vec![group.rank().get(); 10_000];
        let result = group.all_reduce(&mut data, ReduceOp::Sum);
        // The ranks drop their groups at different times.
        std::thread::sleep(Duration::from_millis(u64::from(group.rank().get()) * 20));
        result.map(|()| data[0])
    }) {
        for result in results {
            assert_eq!(result.unwrap(), 6, "{transport}");
        }
    }
}

#[test]
fn a_wait_ends_at_its_deadline_and_names_who_is_late() {
    let rendezvous = std::sync::Barrier::new(2);
    for (transport, errors) in on_all_transports(2, options(), |group| {
        let late = group.rank().get() == 1;
        let hasty = group.with_timeout(EXPIRES);
        let result = if late { Ok(()) } else { hasty.barrier() };
        rendezvous.wait();
        if late {
            // Rank 0 had said that it is there, so the first one may succeed before the news comes.
            group.barrier().and_then(|()| group.barrier()).unwrap_err()
        } else {
            result.unwrap_err()
        }
    }) {
        for error in errors {
            let CollectiveError::Timeout(timeout) = &error else { panic!("{transport}: {error}") };
            assert_eq!((timeout.rank.get(), timeout.waited_for.get()), (0, 1), "{transport}");
            assert!(Duration::from_millis(timeout.elapsed_ms) >= EXPIRES);
        }
    }
}

#[test]
fn a_timeout_says_what_the_missing_rank_did_instead() {
    let rendezvous = std::sync::Barrier::new(3);
    for (transport, errors) in on_all_transports(3, options(), |group| {
        let late = group.rank().get() == 2;
        let hasty = group.with_timeout(EXPIRES);
        let weight = group.named("layers.7.weight");
        weight.all_reduce(&mut [1_u8; 3], ReduceOp::Sum).unwrap();
        rendezvous.wait();
        let result = if late { Ok(()) } else { hasty.barrier() };
        rendezvous.wait();
        if late {
            group.barrier().and_then(|()| group.barrier()).unwrap_err()
        } else {
            result.unwrap_err()
        }
    }) {
        for (rank, error) in errors.iter().enumerate() {
            let CollectiveError::Timeout(timeout) = error else { panic!("{transport}: {error}") };
            // The missing rank may read its own account after it has come.
            let verdict = &timeout.verdict;
            assert!(
                rank == 2
                    || verdict.starts_with(
                        "rank 2 never entered it: its last call, all_reduce #0 (sum, u8 x 3"
                    ) && verdict.contains("(layers.7.weight), ended ")
                        && !verdict.contains("rank 1")
                        && !verdict.contains("rank 0"),
                "{transport}, rank {rank}: {verdict}"
            );
        }
    }
}

/// Ranks measure what the links cost in the first operation whose algorithm depends on it.
#[test]
fn who_still_measures_the_links_for_an_operation_has_entered_it() {
    let rendezvous = std::sync::Barrier::new(3);
    for (transport, errors) in on_all_transports(3, options(), |group| {
        let late = group.rank().get() == 2;
        let hasty = group.with_timeout(EXPIRES);
        let call = || hasty.all_reduce(&mut [1_u8; 3], ReduceOp::Sum);
        rendezvous.wait();
        let result = if late { Ok(()) } else { call() };
        rendezvous.wait();
        let error = if late { call().err() } else { result.err() };
        error.or_else(|| call().err()).unwrap()
    }) {
        for error in &errors[..2] {
            let CollectiveError::Timeout(timeout) = error else { panic!("{transport}: {error}") };
            let verdict = &timeout.verdict;
            let expected = "rank 2 never entered it, and has called nothing in this group before";
            assert_eq!(verdict, expected, "{transport}");
        }
    }
}

#[test]
fn a_very_long_cause_arrives_cut() {
    for (transport, errors) in on_all_transports(2, options(), |group| {
        // Rank 0 may still be in it when rank 1 has left it and fails.
        let met = group.barrier();
        if group.rank().get() == 1 {
            met.unwrap();
            group.abort(&"é".repeat(100_000));
        }
        group.barrier().unwrap_err()
    }) {
        for error in errors {
            let CollectiveError::PeerFailed { rank, cause } = &error else {
                panic!("{transport}: {error}");
            };
            assert_eq!(rank.get(), 1, "{transport}");
            assert!(
                cause.starts_with("éé") && cause.len() < 10_000,
                "{transport}: {}",
                cause.len()
            );
        }
    }
}

/// The busy rank's record is written by the thread that watches the control channel.
#[test]
fn processes_leave_flight_records_also_one_that_hangs() {
    let program = Path::new(env!("CARGO_BIN_EXE_fault-rank"));
    for transport in ["shm", "tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let ranks = processes(program, &[transport, "busy", path], 3);
        for output in &ranks {
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(3), "{transport}: {said}");
        }
        let records = read_flight_records(folder.path()).unwrap();
        let ranks: Vec<u32> = records.iter().map(|record| record.rank.get()).collect();
        assert_eq!(ranks, [0, 1, 2], "{transport}");
        let seqs = records.iter().map(|record| record.operations[0].operation.seq);
        assert_eq!(seqs.collect::<Vec<_>>(), [10, 10, 9], "{transport}");
        assert_eq!(records[2].operations.len(), 10, "{transport}");
        assert!(records[0].operations[0].ended_ago.is_none(), "{transport}");
        assert!(records[2].operations[0].ended_ago.is_some(), "{transport}");
        for record in &records[..2] {
            let failure = record.failure.as_deref().unwrap();
            assert!(
                failure.contains("rank 2 never entered it: its last call, all_reduce #9"),
                "{transport}: {failure}"
            );
        }
    }
}

/// What the ranks printed when the last of three met `fault`.
fn heard(transport: &str, fault: &str) -> Vec<(Option<i32>, String)> {
    let program = Path::new(env!("CARGO_BIN_EXE_fault-rank"));
    processes(program, &[transport, fault], 3)
        .into_iter()
        .map(|output| (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
        .collect()
}

#[test]
fn the_death_of_a_process_is_heard_by_all_others() {
    for transport in ["shm", "unix", "tcp"] {
        for (fault, cause) in [
            ("kill", "ended without leaving"),
            ("exit", "ended without leaving"),
            ("panic", "it panicked"),
            ("abort", "the data set ended early"),
            ("leave", "it left the group"),
        ] {
            let ranks = heard(transport, fault);
            for (code, said) in &ranks[..2] {
                assert_eq!(*code, Some(3), "{fault} over {transport}: {said}");
                assert!(said.contains("rank 2 failed"), "{fault} over {transport}: {said}");
                assert!(said.contains(cause), "{fault} over {transport}: {said}");
            }
        }
    }
}

/// The one that was stopped hears of it as well, once it goes on.
#[test]
fn a_process_that_is_stopped_is_named_for_that() {
    for transport in ["shm", "tcp"] {
        for (code, said) in heard(transport, "stop") {
            assert_eq!(code, Some(3), "{transport}: {said}");
            assert!(
                said.contains("rank 2 failed: its process ")
                    && said.contains(" is stopped (SIGSTOP or SIGTSTP): no heartbeat for "),
                "{transport}: {said}"
            );
        }
    }
}

#[test]
fn without_a_fault_all_end_well() {
    for transport in ["shm", "unix", "tcp"] {
        assert!(heard(transport, "none").iter().all(|(code, _)| *code == Some(0)));
    }
}
