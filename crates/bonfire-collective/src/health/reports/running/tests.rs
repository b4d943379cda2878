use bonfire_plan::{Algorithm, DType};
use bonfire_plan::{CallSite, Operation};

use super::*;
use crate::health::recorder::FlightOperation;
use crate::health::recorder::{PhaseProgress, Progress};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Operation `seq`, which began a minute ago.
fn operation(collective: Collective, seq: u64, ended_ago_s: Option<u64>) -> FlightOperation {
    FlightOperation {
        operation: Operation {
            group: 0,
            seq,
            step: None,
            collective,
            algorithm: Algorithm::OneShot,
            dtype: DType::F32,
            reduce: None,
            count: 10,
            layout: 0,
            call_site: CallSite::default(),
        },
        name: None,
        enqueued_ago: None,
        started_ago: seconds(60),
        ended_ago: ended_ago_s.map(seconds),
    }
}

fn barrier(seq: u64, ended_ago_s: Option<u64>) -> Option<FlightOperation> {
    Some(operation(Collective::Barrier, seq, ended_ago_s))
}

fn record(rank: u32, last: Option<FlightOperation>) -> FlightRecord {
    FlightRecord {
        version: 1,
        group: 0,
        rank: Rank::new(rank),
        job_rank: Rank::new(rank),
        world_size: 4,
        process_id: 1,
        written: seconds(u64::from(rank)),
        failure: None,
        progress: Progress::default(),
        waited: Duration::ZERO,
        operations: last.into_iter().collect(),
    }
}

fn report(records: &[FlightRecord]) -> GroupReport {
    GroupReport::of(records).unwrap()
}

#[test]
fn the_one_that_is_waited_for_is_named_with_what_it_does() {
    let mut late = record(2, barrier(6, Some(58)));
    late.progress.phase =
        Some(PhaseProgress { name: "data loading".to_owned(), began_ago: seconds(57) });
    let waits = |rank| record(rank, barrier(7, None));
    let verdict = report(&[waits(0), waits(1), late, waits(3)]).verdict();
    assert_eq!(
        verdict,
        "ranks 0, 1 and 3 wait in barrier #7 (f32 x 10, one_shot) for 60.0 s: rank 2 has not entered it: \
         its last call, barrier #6 (f32 x 10, one_shot), ended 58.0 s ago, and the program has been busy \
         with something else since (\"data loading\" for 57.0 s)"
    );
}

#[test]
fn a_job_that_moves_is_said_to() {
    let mut moving = operation(Collective::Barrier, 7, None);
    moving.started_ago = Duration::from_millis(3);
    let records: Vec<FlightRecord> = (0..4)
        .map(|rank| match rank {
            0 => record(rank, Some(moving.clone())),
            _ => record(rank, barrier(6, Some(0))),
        })
        .collect();
    let verdict = report(&records).verdict();
    assert!(verdict.starts_with("it continues"), "{verdict}");
}

#[test]
fn ranks_that_stand_still_in_a_call_are_suspicious() {
    let verdict = |phase: &str| {
        let still = |rank| {
            let mut still = record(rank, barrier(6, Some(25)));
            still.progress.phase =
                Some(PhaseProgress { name: phase.to_owned(), began_ago: seconds(26) });
            still
        };
        report(&[0, 1, 2, 3].map(still)).verdict()
    };
    let found = verdict("Ddp::backward");
    let expected = "suspicious: all ranks have been in Ddp::backward for 25.0 s and have exchanged nothing since";
    assert!(found.starts_with(expected), "{found}");
    assert!(verdict("after Ddp::backward").starts_with("it continues"));
}

#[test]
fn a_silent_rank_is_named_though_nobody_waits() {
    let busy = |rank| record(rank, barrier(6, Some(1)));
    let mut report = report(&[busy(0), busy(1), busy(3)]);
    assert_eq!(report.silent(), [Rank::new(2)]);
    let verdict = report.verdict();
    assert!(verdict.starts_with("rank 2 gives no account of itself"), "{verdict}");
    report.departed = vec![Rank::new(2)];
    assert!(report.silent().is_empty());
    assert!(report.verdict().starts_with("it continues"));
}

#[test]
fn a_large_operation_that_all_are_in_has_no_culprit() {
    let records: Vec<FlightRecord> = (0..4).map(|rank| record(rank, barrier(7, None))).collect();
    let verdict = report(&records).verdict();
    assert!(
        verdict.starts_with("ranks 0, 1, 2 and 3 are in barrier #7")
            && verdict.contains("nobody is missing"),
        "{verdict}"
    );
}

#[test]
fn of_two_ranks_that_talk_alone_the_other_is_named() {
    let (source, target) = (Rank::new(3), Rank::new(0));
    let transfer = operation(Collective::Transfer { source, target }, 0, None);
    let records = [
        record(0, Some(transfer)),
        record(1, barrier(6, Some(50))),
        record(2, None),
        record(3, barrier(6, Some(50))),
    ];
    let verdict = report(&records).verdict();
    assert!(
        verdict.starts_with("rank 0 waits in ") && verdict.contains("rank 3 has not entered it"),
        "{verdict}"
    );
    assert!(!verdict.contains("rank 2"), "{verdict}");
}

#[test]
fn of_a_failed_group_the_first_word_counts() {
    let mut records: Vec<FlightRecord> = (0..3).map(|rank| record(rank, None)).collect();
    records[1].failure = Some("first".to_owned());
    records[2].failure = Some("second".to_owned());
    assert_eq!(report(&records).verdict(), "first");
}
