use bonfire_plan::{Algorithm, CallSite, Collective, DType, ReduceOp};

use super::*;

const WORLD: u32 = 4;

fn operation(collective: Collective, seq: u64) -> Operation {
    Operation {
        group: 0,
        seq,
        step: None,
        collective,
        algorithm: Algorithm::OneShot,
        dtype: DType::F32,
        reduce: Some(ReduceOp::Sum),
        count: 10,
        layout: 0,
        call_site: CallSite::default(),
    }
}

fn all_reduce(seq: u64, ended_ago_s: Option<u64>) -> Option<FlightOperation> {
    record(Collective::AllReduce, seq, ended_ago_s)
}

fn record(collective: Collective, seq: u64, ended_ago_s: Option<u64>) -> Option<FlightOperation> {
    Some(FlightOperation {
        operation: operation(collective, seq),
        name: Some("layers.7.weight".to_owned()),
        enqueued_ago: None,
        started_ago: Duration::from_secs(61),
        ended_ago: ended_ago_s.map(Duration::from_secs),
    })
}

/// What rank 0 reports, which waited for rank 1 in operation 120; `None` is a rank without a report.
fn verdict_of(collective: Collective, others: [Option<Option<FlightOperation>>; 3]) -> String {
    let timeout = Timeout {
        rank: Rank::new(0),
        waited_for: Rank::new(1),
        operation: operation(collective, 120),
        elapsed_ms: 60_000,
        verdict: String::new(),
    };
    let reports = (1..)
        .map(Rank::new)
        .zip(others)
        .filter_map(|(rank, report)| {
            Some((
                rank,
                RankReport {
                    rank,
                    last: report?,
                    progress: Progress::default(),
                    awaited: Vec::new(),
                },
            ))
        })
        .collect();
    verdict(&timeout, WorldSize::new(WORLD).unwrap(), &reports)
}

#[test]
fn the_rank_that_never_came_is_named_not_the_one_that_waits_too() {
    let waits = Some(all_reduce(120, None));
    let verdict =
        verdict_of(Collective::AllReduce, [waits.clone(), waits, Some(all_reduce(119, Some(58)))]);
    assert_eq!(
        verdict,
        "rank 3 never entered it: its last call, all_reduce #119 (sum, f32 x 10, one_shot) \
         (layers.7.weight), ended 58.0 s ago, and the program has been busy with something else since"
    );
}

#[test]
fn silence_idleness_and_earlier_operations_are_distinguished() {
    let verdict =
        verdict_of(Collective::AllReduce, [None, Some(None), Some(all_reduce(7, Some(3)))]);
    let parts: Vec<&str> = verdict.split("; ").collect();
    assert!(parts[0].starts_with("rank 1 gives no account of itself"), "{verdict}");
    assert!(parts[1].contains("rank 2 never entered it, and has called nothing"), "{verdict}");
    assert!(
        parts[2].starts_with("rank 3 never entered it: its last call, all_reduce #7"),
        "{verdict}"
    );
}

/// Rank 3 is in operation 7 still because another is not in that, either.
#[test]
fn whoever_waits_in_an_earlier_operation_is_kept_there_by_another() {
    let behind = || Some(all_reduce(7, None));
    let there = || Some(all_reduce(120, None));
    for culprit in [None, Some(None), Some(all_reduce(6, Some(3)))] {
        let verdict = verdict_of(Collective::AllReduce, [culprit, there(), behind()]);
        assert!(verdict.starts_with("rank 1 "), "{verdict}");
        assert!(!verdict.contains("rank 3"), "{verdict}");
    }
    // Rank 1 has left that operation, so it is not why rank 3 is still there.
    let verdict =
        verdict_of(Collective::AllReduce, [Some(all_reduce(7, Some(3))), there(), behind()]);
    assert!(
        verdict.contains("; rank 3 never entered it: it is still in all_reduce #7"),
        "{verdict}"
    );
    let verdict = verdict_of(Collective::AllReduce, [there(), there(), behind()]);
    assert!(
        verdict.starts_with("rank 3 never entered it: it is still in all_reduce #7"),
        "{verdict}"
    );
}

#[test]
fn where_all_are_in_it_the_link_is_to_blame() {
    let waits = Some(all_reduce(120, None));
    let verdict = verdict_of(Collective::AllReduce, [waits.clone(), waits.clone(), waits]);
    assert_eq!(
        verdict,
        "rank 1 entered it 61.0 s ago; every rank got there, so a link is slow or stuck"
    );
}

#[test]
fn of_a_pair_only_the_other_matters() {
    let transfer = Collective::Transfer { source: Rank::new(1), target: Rank::new(0) };
    let verdict = verdict_of(transfer, [Some(all_reduce(500, Some(2))), None, None]);
    assert!(
        verdict.starts_with("rank 1 never entered it: its last call, all_reduce #500"),
        "{verdict}"
    );
    assert!(!verdict.contains("rank 2"), "{verdict}");
}

#[test]
fn many_culprits_are_counted() {
    let timeout = Timeout {
        rank: Rank::new(0),
        waited_for: Rank::new(1),
        operation: operation(Collective::Barrier, 3),
        elapsed_ms: 1,
        verdict: String::new(),
    };
    let verdict = verdict(&timeout, WorldSize::new(64).unwrap(), &BTreeMap::new());
    assert!(verdict.ends_with("; 59 more ranks are not there either"), "{verdict}");
}

/// Rank 1 is not there because rank 2 is not: only that one is named.
#[test]
fn whoever_is_still_joining_is_kept_waiting_by_another() {
    let timeout = Timeout {
        rank: Rank::new(0),
        waited_for: Rank::new(1),
        operation: operation(Collective::AllReduce, 0),
        elapsed_ms: 60_000,
        verdict: String::new(),
    };
    let reports = Reports::default();
    let joining = |rank, awaited| RankReport::of_joining(Rank::new(rank), vec![Rank::new(awaited)]);
    let text = || verdict(&timeout, WorldSize::new(3).unwrap(), &reports.all());
    reports.receive(joining(1, 2));
    assert!(text().starts_with("rank 2 gives no account"), "{}", text());
    assert!(!text().contains("rank 1"), "{}", text());
    reports.receive(joining(2, 1));
    assert!(
        text().starts_with(
            "rank 1 never entered it: it is still joining the group, and is not \
                            connected to rank 2; rank 2 never"
        ),
        "{}",
        text()
    );
    reports.joined(Rank::new(1));
    assert!(text().starts_with("rank 1 gives no account"), "{}", text());
}
