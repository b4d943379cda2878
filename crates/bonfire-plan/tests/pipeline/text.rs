//! Schedules as CSV.

use bonfire_plan::pipeline::{Broken, CsvError, Kind, Rule, Schedule, verify};
use proptest::prelude::*;

use crate::{complete, rank, schedule, shape, usual};

#[test]
fn what_is_written_is_read_again() {
    for &kind in Kind::ALL {
        for schedule in [usual(kind), complete(usual(kind))] {
            let read = Schedule::from_csv(&schedule.to_csv()).unwrap();
            assert_eq!(read.lists(), schedule.lists());
            assert_eq!(read.micro_batches(), 8);
            let stages = 0..schedule.stages();
            assert!(stages.clone().all(|stage| read.owner(stage) == schedule.owner(stage)));
            assert_eq!(read.stages(), stages.end);
            assert_eq!(read.shape(), None);
            assert_eq!(verify(&read), verify(&schedule));
        }
    }
}

#[test]
fn a_line_is_a_rank() {
    let text = schedule(Kind::OneForwardOneBackward, [2, 1, 3]).to_csv();
    assert_eq!(text, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

#[test]
fn fields_may_be_empty_and_lines_may_end_like_those_of_windows() {
    let read = Schedule::from_csv("0F0,, ,0B0\r\n,1F0 ,1B0\r\n\r\n").unwrap();
    assert_eq!(read.to_csv(), "0F0,0B0\n1F0,1B0\n");
}

#[test]
fn what_is_no_schedule_is_refused_with_its_place() {
    let refused = |text: &str| Schedule::from_csv(text).unwrap_err().to_string();
    assert!(
        refused("0F0,0B0\n1F0,1X0\n").starts_with("line 2, field 2: `1X0` is not an action; write")
    );
    assert_eq!(
        refused("0F0,0B0\n\n1F0,1B0"),
        "line 2 has no pass; give every rank a stage, or remove the line"
    );
    let gap = refused("0F0,0B0\n2F0,2B0");
    assert_eq!(gap, "no rank computes stage 1, but one computes stage 2; count stages from 0");
    assert!(matches!(Schedule::from_csv(""), Err(CsvError::Ranks(_))));
    assert!(matches!(
        Schedule::from_csv("0F4294967295,0B4294967295"),
        Err(CsvError::Broken(Broken::Action { .. } | Broken::Missing { .. }))
    ));
}

#[test]
fn what_is_read_goes_through_the_verifier() {
    let late = Schedule::from_csv("0F0,0B0\n1B0,1F0\n").unwrap_err();
    let CsvError::Broken(Broken::Action { rank: by, rule, .. }) = late else {
        panic!("{late}");
    };
    assert_eq!(by, rank(1));
    assert!(matches!(rule, Rule::BeforeForward(_)));
    // A stage is on one rank.
    let twice = Schedule::from_csv("0F0,0B0\n0F1,0B1\n").unwrap_err();
    assert_eq!(
        twice.to_string(),
        "rank 1, action 0 (0F1): the stage is on rank 0; let that rank do it"
    );
}

/// `golden/orders.csv` is what PyTorch's own generators give; see `golden/orders.py`.
#[test]
fn the_orders_are_those_of_pytorch() {
    let mut compared = 0;
    for block in include_str!("../golden/orders.csv").split("# ").skip(1) {
        let (head, text) = block.split_once('\n').unwrap();
        let mut words = head.split(' ');
        let kind: Kind = words.next().unwrap().parse().unwrap();
        let sizes: Vec<u32> = words.map(|word| word.parse().unwrap()).collect();
        let ours = Schedule::new(shape(kind, sizes.try_into().unwrap())).unwrap().to_csv();
        let lines = ours.lines().zip(text.lines());
        let ranks = ours.lines().count();
        for (rank, (ours, theirs)) in lines.enumerate() {
            // PyTorch counts the forward passes of the last rank from 1 where it shows the order of 1F1B.
            let is_miscounted = kind == Kind::OneForwardOneBackward && rank + 1 == ranks;
            if !is_miscounted {
                assert_eq!(ours, theirs, "{head}, rank {rank}");
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 9);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[0-4FBIWSENDRCV_,\n]{0,60}") {
        let _ = Schedule::from_csv(&text);
    }
}
