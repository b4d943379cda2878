//! Wrong arguments: a typed error on every rank, which says who did what, and never a hang.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, Rank, ReduceOp};
use bonfire_testkit::{assert_each_says, connected, local};

type Outcome = Result<(), CollectiveError>;

/// What each of three ranks gets from `body`, as threads and over sockets.
fn outcomes(
    body: impl Fn(&ProcessGroup) -> Outcome + Sync + Copy + Send + 'static,
) -> Vec<Outcome> {
    let options = GroupOptions::default();
    let mut all = local(3, options.clone(), move |group| body(&group));
    all.extend(connected(3, options, move |group| body(&group)));
    all
}

/// Every rank's error names rank 1 and says `what`.
fn rank_one_is_to_blame(
    what: &'static str,
    body: impl Fn(&ProcessGroup) -> Outcome + Sync + Copy + Send + 'static,
) {
    for outcome in outcomes(body) {
        let error = outcome.unwrap_err();
        let CollectiveError::PeerFailed { rank, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*rank, Rank::new(1), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// All ranks make the same mistake: each is notified, by itself or by one that was faster.
fn all_are_notified(
    what: &'static str,
    body: impl Fn(&ProcessGroup) -> Outcome + Sync + Copy + Send + 'static,
) {
    let errors: Vec<_> = outcomes(body).into_iter().map(Outcome::unwrap_err).collect();
    assert!(errors.iter().any(|error| matches!(error, CollectiveError::Usage(_))));
    assert_each_says(errors, &[what]);
}

/// The others do not wait for what never comes.
#[test]
fn a_mistake_of_one_rank_ends_the_group_for_all_at_once() {
    let outcomes = outcomes(|group| {
        let root = if group.rank() == Rank::new(1) { 9 } else { 0 };
        group.broadcast(&mut [1.0_f32; 8], Rank::new(root))?;
        // The root itself may have been through.
        group.barrier()
    });
    for (place, outcome) in outcomes.into_iter().enumerate() {
        match outcome.unwrap_err() {
            CollectiveError::Usage(_) => assert_eq!(place % 3, 1),
            CollectiveError::PeerFailed { rank, .. } => assert_eq!(rank, Rank::new(1)),
            error => panic!("{error}"),
        }
    }
}

/// Somebody finds that ranks 0 and 1 are in different operations.
fn ranks_disagree(body: impl Fn(&ProcessGroup) -> Outcome + Sync + Copy + Send + 'static) {
    for outcome in outcomes(body) {
        let error = outcome.unwrap_err();
        let CollectiveError::Mismatch(mismatch) = &error else {
            panic!("{error}");
        };
        let ranks = [mismatch.rank, mismatch.other_rank];
        assert!(ranks.contains(&Rank::new(1)), "{error}");
        assert!(error.to_string().contains("usage.rs"), "{error}");
    }
}

fn is_one(group: &ProcessGroup) -> usize {
    usize::from(group.rank() == Rank::new(1))
}

#[test]
fn an_output_that_is_too_short() {
    rank_one_is_to_blame("an output of 5 elements where 6 are needed", |group| {
        let mut output = vec![0_u8; 6 - is_one(group)];
        group.all_gather_into(&[1, 2], &mut output)
    });
}

#[test]
fn block_lengths_that_do_not_cover_the_input() {
    rank_one_is_to_blame("an input of 6 elements where 7 are needed", |group| {
        let lengths = [2, 2, 2 + is_one(group)];
        group.all_to_all_v(&[0_i32; 6], &lengths).map(drop)
    });
}

#[test]
fn blocks_that_are_not_equal() {
    rank_one_is_to_blame("not 3 equal blocks", |group| {
        group.all_to_all(&mut vec![0_u16; 6 + is_one(group)])
    });
}

#[test]
fn counts_that_differ() {
    ranks_disagree(|group| group.all_reduce(&mut vec![0.0_f32; 4 + is_one(group)], ReduceOp::Sum));
}

#[test]
fn counts_that_differ_in_memory_that_is_shared() {
    ranks_disagree(|group| {
        let mut data = group.buffer::<f32>(100_000 + is_one(group)).unwrap();
        group.all_reduce(&mut data, ReduceOp::Sum)
    });
}

#[test]
fn types_that_differ() {
    ranks_disagree(|group| match is_one(group) {
        0 => group.all_reduce(&mut [0_u32], ReduceOp::Sum),
        _ => group.all_reduce(&mut [0_i32], ReduceOp::Sum),
    });
}

#[test]
fn operations_that_differ() {
    ranks_disagree(|group| match is_one(group) {
        0 => group.all_reduce(&mut [0_u32; 3], ReduceOp::Sum),
        _ => group.all_gather_in_place(&mut [0_u32; 3]),
    });
}

#[test]
fn block_lengths_that_differ() {
    ranks_disagree(|group| {
        let lengths = [[1, 2, 3], [3, 2, 1]][is_one(group)];
        group.reduce_scatter_v(&[0_i64; 6], &lengths, ReduceOp::Sum).map(drop)
    });
}

#[test]
fn a_reduction_that_the_type_does_not_have() {
    all_are_notified("sum does not reduce bool", |group| {
        group.all_reduce(&mut [true], ReduceOp::Sum)
    });
    all_are_notified("xor does not reduce f32", |group| {
        group.all_reduce(&mut [1.0_f32], ReduceOp::Xor)
    });
}

#[test]
fn a_rank_that_is_not_there() {
    all_are_notified("rank", |group| group.reduce(&mut [1], Rank::new(3), ReduceOp::Sum));
    all_are_notified("rank", |group| group.send(&[1], Rank::new(3)));
}

#[test]
fn a_message_to_oneself() {
    all_are_notified("rank", |group| group.send(&[1], group.rank()));
}

#[test]
fn lengths_that_do_not_add_up() {
    all_are_notified("add up to 3", |group| {
        group.reduce_scatter_v(&[1; 5], &[1, 1, 1], ReduceOp::Sum).map(drop)
    });
}

#[test]
fn use_after_abort() {
    rank_one_is_to_blame("enough", |group| {
        if is_one(group) == 1 {
            group.abort("enough");
        }
        group.all_to_all(&mut [0_u8; 3])?;
        group.barrier()
    });
}

#[test]
fn an_error_of_one_rank_ends_the_group_for_all() {
    rank_one_is_to_blame("rank 1 failed: no more disk", |group| {
        let read = if is_one(group) == 1 { Err("no more disk") } else { Ok(()) };
        assert_eq!(group.or_abort(read), read);
        group.barrier()
    });
}

#[test]
fn a_panic_of_one_rank_ends_the_group_for_all() {
    rank_one_is_to_blame("rank 1 failed: panicked: no more disk", |group| {
        let work = || assert!(is_one(group) != 1, "no more disk");
        let done = catch_unwind(AssertUnwindSafe(|| group.abort_on_panic(work)));
        assert_eq!(done.is_err(), is_one(group) == 1);
        group.barrier()
    });
}

#[test]
fn one_operation_may_have_more_or_less_time_than_the_others() {
    let options = |millis| GroupOptions::default().with_timeout(Duration::from_millis(millis));
    // Rank 1 comes late to an operation that may take long, of a group that is in a hurry.
    let outcomes = local(2, options(2_000), |group| {
        if is_one(&group) == 1 {
            std::thread::sleep(Duration::from_secs(3));
        }
        let patient = group.with_timeout(Duration::from_secs(30)).named("patient");
        assert_eq!(patient.timeout(), Duration::from_secs(30));
        patient.barrier()?;
        patient.background(vec![1], |group, data| group.all_reduce(data, ReduceOp::Sum)).wait()?;
        group.barrier()
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    // And it never comes to one that must be fast, of a group that has time.
    let expired = std::sync::Barrier::new(2);
    let outcomes = local(2, options(60_000), |group| {
        let hasty = group.with_timeout(Duration::from_millis(200));
        let outcome = match is_one(&group) {
            1 => Ok(()),
            _ => hasty.barrier(),
        };
        expired.wait();
        // What ended for one has ended for all.
        outcome.and_then(|()| group.barrier())
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CollectiveError::Timeout(_)), "{error}");
    }
}

#[test]
fn a_send_that_nobody_receives_ends_by_the_deadline() {
    let options = GroupOptions::default().with_timeout(std::time::Duration::from_millis(300));
    let outcomes = local(2, options, |group| {
        // More than the link holds.
        let data = vec![0_u8; 8 << 20];
        let peer = Rank::new(1 - group.rank().get());
        group.send(&data, peer)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CollectiveError::Timeout(_)), "{error}");
        assert!(error.to_string().contains("transfer"), "{error}");
    }
}
