//! Each rule, by a schedule that breaks it and no other, and what the error says.

use bonfire_plan::pipeline::{Broken, Kind, Rule, Schedule, ShapeError, verify};

use crate::{action, lists, rank, schedule, shape};

/// Two ranks, one stage each, one micro-batch.
fn two_ranks() -> Schedule {
    schedule(Kind::GPipe, [2, 1, 1])
}

const SENT: [&str; 2] = ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"];

#[track_caller]
fn broken(texts: &[&str]) -> Broken {
    let damaged = two_ranks().with_lists(lists(texts));
    verify(&damaged).expect_err("a rule is broken")
}

/// The rule that is broken by the action at this place of this rank.
#[track_caller]
fn rule(texts: &[&str], at: (u32, usize)) -> Rule {
    match broken(texts) {
        Broken::Action { rank: by, index, rule, .. } if (by, index) == (rank(at.0), at.1) => rule,
        other => panic!("not at {at:?}: {other}"),
    }
}

#[test]
fn the_lists_that_are_damaged_below_are_right() {
    verify(&two_ranks().with_lists(lists(&SENT))).unwrap();
    verify(&two_ranks().with_lists(lists(&["0F0 0I0 0W0", "1F0 1B0"]))).unwrap();
}

#[test]
fn numbers_are_those_of_the_pipeline() {
    assert_eq!(rule(&["0F0 0B0 2F0", "1F0 1B0"], (0, 2)), Rule::UnknownStage { stages: 2 });
    let none = Rule::UnknownMicroBatch { micro_batches: 1 };
    assert_eq!(rule(&["0F0 0F1 0B0", "1F0 1B0"], (0, 1)), none);
    let owner = rank(1);
    assert_eq!(rule(&["0F0 1F0 0B0", "1B0"], (0, 1)), Rule::NotTheOwner { owner });
}

#[test]
fn a_backward_pass_is_whole_or_split() {
    let other = action("0B0");
    assert_eq!(rule(&["0F0 0B0 0W0", "1F0 1B0"], (0, 2)), Rule::TwoBackwards { other });
    let error = broken(&["0F0 0I0", "1F0 1B0"]);
    assert_eq!(error, Broken::Missing { rank: rank(0), action: action("0W0") });
    assert_eq!(error.to_string(), "rank 0 never does 0W0; add it to the rank's list");
}

#[test]
fn messages_have_two_ends_on_two_ranks() {
    let error = broken(&[SENT[0], "1F0 1B0 1SEND_B0"]);
    assert_eq!(error, Broken::Missing { rank: rank(1), action: action("1RECV_F0") });
    assert_eq!(rule(&[SENT[0], "1RECV_F0 1F0 1SEND_F0 1B0 1SEND_B0"], (1, 2)), Rule::NoPeer);
}

#[test]
fn ranks_that_wait_for_each_other_are_all_named() {
    // Each sends before it receives: with a buffer they would go on, and the verifier allows none.
    let both = schedule(Kind::GPipe, [2, 1, 2]).with_lists(lists(&[
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    ]));
    let error = verify(&both).expect_err("they wait");
    assert_eq!(
        error.to_string(),
        "deadlock: rank 0 waits in action 3 (0SEND_F1) for 1RECV_F1; rank 1 waits in action 3 (1SEND_B0) for \
         0RECV_B0; move what is waited for to the front"
    );
    let circle =
        schedule(Kind::GPipe, [2, 1, 2]).with_lists(lists(&["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]));
    let error = verify(&circle).expect_err("they wait");
    assert_eq!(
        error.to_string(),
        "deadlock: rank 0 waits in action 1 (0B0) for 1B0; rank 1 waits in action 1 (1F1) for 0F1; move what is \
         waited for to the front"
    );
}

#[test]
fn messages_of_two_ranks_keep_their_order() {
    let crossed = schedule(Kind::GPipe, [2, 1, 2]).with_lists(lists(&[
        "0F0 0F1 0SEND_F1 0SEND_F0 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
    ]));
    let error = verify(&crossed).expect_err("they cross");
    assert_eq!(
        error.to_string(),
        "rank 0 does 0SEND_F1 where rank 1 does 1RECV_F0; let both be in the same order"
    );
}

#[test]
fn a_schedule_holds_the_activations_of_its_kind() {
    let kind = Kind::OneForwardOneBackward;
    let greedy = schedule(kind, [1, 1, 2]).with_lists(lists(&["0F0 0F1 0B0 0B1"]));
    let error = verify(&greedy).expect_err("it holds two");
    assert_eq!(
        error.to_string(),
        "rank 0 holds 2 activations at most, where 1f1b holds 1; let forward passes come later"
    );
}

#[test]
fn errors_say_where_and_what_to_change() {
    let damaged = ["0F0 0B0", "1B0 1F0"];
    let expected = "rank 1, action 0 (1B0): it must come after the forward pass 1F0";
    assert_eq!(broken(&damaged).to_string(), expected);
}

#[test]
fn shapes_are_refused_with_what_they_need() {
    let refused = |kind, sizes| Schedule::new(shape(kind, sizes)).unwrap_err().to_string();
    assert_eq!(refused(Kind::GPipe, [4, 2, 8]), "gpipe has 1 stage on each rank, not 2");
    assert_eq!(
        refused(Kind::Interleaved, [4, 1, 8]),
        "interleaved has 2 stages or more on each rank, not 1"
    );
    assert_eq!(refused(Kind::ZeroBubbleV, [4, 3, 8]), "zbv has 2 stages on each rank, not 3");
    assert_eq!(
        refused(Kind::Interleaved, [4, 2, 9]),
        "9 micro-batches are not 2 equal rounds; take a multiple of the number of ranks, or fewer than twice as many"
    );
    let huge = Schedule::new(shape(Kind::GPipe, [u32::MAX, 1, u32::MAX]));
    assert!(matches!(huge, Err(ShapeError::TooLong { .. })));
    let huge = Schedule::new(shape(Kind::Interleaved, [u32::MAX, u32::MAX, u32::MAX]));
    assert!(matches!(huge, Err(ShapeError::TooLong { .. })));
}
