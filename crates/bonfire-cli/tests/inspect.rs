//! `bonfire inspect`, as a user runs it after a failure.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use bonfire_collective::{CollectiveError, GroupOptions, ReduceOp};
use bonfire_testkit::{Job, JobEnd, assert_each_says, local};
use serde_json::Value;

fn inspect(folder: &Path, arguments: &[&str]) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    Job::start(command.arg("inspect").arg(folder).args(arguments)).end()
}

/// Two of three ranks wait for the third, which has other things to do.
fn fail(folder: &Path) {
    let options = GroupOptions::default().with_flight_dir(Some(folder.to_owned()));
    let failed = Barrier::new(3);
    let errors = local(3, options, |group| {
        let weight = group.named("layers.7.weight");
        weight.all_reduce(&mut [1.0_f32; 3000], ReduceOp::Sum).unwrap();
        let result = match group.rank().get() {
            2 => Ok(()),
            _ => group.with_timeout(Duration::from_secs(2)).barrier(),
        };
        failed.wait();
        result
    });
    assert!(matches!(errors[0], Err(CollectiveError::Timeout(_))), "{errors:?}");
}

#[test]
fn the_ranks_last_operations_are_shown_with_the_verdict() {
    let folder = tempfile::tempdir().unwrap();
    fail(folder.path());
    let trace = folder.path().join("trace.json");
    let end = inspect(folder.path(), &["--trace", trace.to_str().unwrap()]).with_code(0);
    let [verdict, _, rank_0, rank_1, rank_2] = &end.stdout[..] else {
        panic!("five lines, got {:?}", end.stdout);
    };
    assert!(verdict.starts_with("Group 0 of 3 ranks: rank "), "{verdict}");
    assert!(verdict.contains("rank 2 never entered it: its last call, all_reduce #0"), "{verdict}");
    assert_each_says([rank_0, rank_1], &["in it for ", "barrier #1"]);
    assert!(rank_2.contains(" s ago") && rank_2.ends_with("(layers.7.weight)"), "{rank_2}");

    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete = |event: &&Value| event["ph"] == "X";
    let of_rank = |rank: u32| {
        let of_rank = move |event: &&Value| event["tid"] == rank;
        let names = events.iter().filter(complete).filter(of_rank);
        names.map(|event| event["name"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of_rank(0), ["all_reduce layers.7.weight", "barrier"]);
    assert_eq!(of_rank(2), ["all_reduce layers.7.weight"]);
    let pending = events.iter().filter(|event| event["cat"] == "pending");
    let longest = pending.map(|event| event["dur"].as_f64().unwrap());
    let longest = longest.fold(0.0, f64::max);
    // The beginning of a small operation is exact to a tick of the kernel, 10 ms at most.
    assert!(longest >= 1985e3, "{longest} us");
}

#[test]
fn time_in_the_queue_is_told_apart_from_time_in_the_operation() {
    const LATE: Duration = Duration::from_millis(100);
    let folder = tempfile::tempdir().unwrap();
    let options = GroupOptions::default().with_flight_dir(Some(folder.path().to_owned()));
    let [called, done] = [(); 2].map(|()| Barrier::new(2));
    local(2, options, |group| {
        let is_late = group.rank().get() == 1;
        if is_late {
            called.wait();
            std::thread::sleep(LATE);
        }
        let works = [(); 2].map(|()| {
            group.background(vec![1.0_f32; 3000], |group, data| {
                group.all_reduce(data, ReduceOp::Sum)
            })
        });
        if !is_late {
            called.wait();
        }
        for work in works {
            work.wait().unwrap();
        }
        done.wait();
        group.abort("enough");
    });
    let trace = folder.path().join("trace.json");
    let end = inspect(folder.path(), &["--trace", trace.to_str().unwrap()]).with_code(0);
    // Rank 0 called both at once, and was in the first until rank 1 came.
    let row = &end.stdout[2];
    assert!(row.contains("all_reduce #1") && row.contains(", queued for "), "{row}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let times = |ph: &str| {
        let of_rank_0 = |event: &&Value| event["ph"] == ph && event["tid"] == 0;
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let events = events.filter(of_rank_0);
        events.map(|event| (event["id"].clone(), event["ts"].as_f64().unwrap())).collect::<Vec<_>>()
    };
    let (began, ended) = (times("b"), times("e"));
    assert_eq!((began.len(), ended.len()), (2, 2), "{began:?} {ended:?}");
    let longest = began.iter().zip(&ended).map(|(began, ended)| {
        assert_eq!(began.0, ended.0);
        ended.1 - began.1
    });
    let longest = longest.fold(0.0, f64::max);
    assert!(longest >= 0.9 * LATE.as_secs_f64() * 1e6, "{longest} us");
}

#[test]
fn a_missing_record_is_said_and_json_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    fail(folder.path());
    let gone = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("rank-1-"))
        .unwrap();
    fs::remove_file(gone).unwrap();
    let end = inspect(folder.path(), &[]);
    assert!(end.stdout.last().unwrap().starts_with("No record of rank 1: "), "{:?}", end.stdout);
    let end = inspect(folder.path(), &["--json"]);
    let records: Value = serde_json::from_str(&end.stdout.join("\n")).unwrap();
    assert_eq!(records[1]["operations"][0]["name"], "layers.7.weight");
}

#[test]
fn a_folder_without_records_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (folder, expected) in [
        (folder.path().to_owned(), "has no flight records"),
        (folder.path().join("none"), "cannot read the flight records"),
    ] {
        let end = inspect(&folder, &[]).with_code(1);
        assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
        assert!(end.stderr[0].contains(expected), "{:?}", end.stderr);
    }
}
