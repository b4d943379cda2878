//! Burn's learner on processes: what it learns, and how it ends.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd, Signal, Watchdog, assert_gone, signal_process};

/// Starts the fixture on ranks.
fn start(folder: &Path, ranks: u32, what: &str) -> Job {
    start_logging("warn", folder, ranks, what)
}

fn start_logging(log: &str, folder: &Path, ranks: u32, what: &str) -> Job {
    let mut command = Command::new(env!("CARGO_BIN_EXE_learning"));
    command.arg(folder).arg(what);
    command.args(["--nproc", &ranks.to_string(), "--device", "cpu"]).env("BONFIRE_LOG", log);
    Job::start(&mut command)
}

/// Runs the fixture on ranks; all of its processes are gone afterwards.
fn run(ranks: u32, what: &str) -> JobEnd {
    let folder = tempfile::tempdir().unwrap();
    let end = start(folder.path(), ranks, what).end();
    let ids: Vec<u32> = values(&end, "pid ").iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), ranks as usize, "{:?}", end.stdout);
    assert_gone(&ids);
    end
}

/// What the ranks printed after a word.
fn values(end: &JobEnd, word: &str) -> Vec<String> {
    let found = end.stdout.iter().filter_map(|line| line.split(word).nth(1));
    found.map(str::to_owned).collect()
}

#[track_caller]
fn one_value(end: &JobEnd, word: &str, ranks: usize) -> String {
    let found = values(end, word);
    assert_eq!(found.len(), ranks, "{:?} {:?}", end.stdout, end.stderr);
    assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
    found[0].clone()
}

/// How many samples the ranks validated, fewest first.
fn validated(end: &JobEnd) -> Vec<usize> {
    let counts = values(end, "validated ");
    let mut counts: Vec<usize> = counts.iter().map(|count| count.parse().unwrap()).collect();
    counts.sort_unstable();
    counts
}

#[test]
fn the_learner_gives_the_parameters_of_an_own_loop() {
    let end = run(2, "compare");
    assert!(end.status.success(), "{:?}", end.stderr);
    let learned = one_value(&end, "parameters ", 2);
    assert_eq!(learned, one_value(&end, "loop ", 2));
    assert_eq!(end.stdout.iter().filter(|line| line.contains("Starting training")).count(), 1);
}

#[test]
fn every_sample_is_validated_once_per_epoch() {
    let end = run(3, "train");
    assert!(end.status.success(), "{:?}", end.stderr);
    one_value(&end, "parameters ", 3);
    // 11 samples are 4, 4 and 3; six epochs.
    assert_eq!(validated(&end), [18, 24, 24]);
}

#[test]
fn a_metric_that_gets_worse_on_one_rank_stops_all_after_the_same_epoch() {
    let end = run(2, "worse");
    assert!(end.status.success(), "{:?}", end.stderr);
    one_value(&end, "parameters ", 2);
    // Of 11 samples 6 and 5, in three epochs of six.
    assert_eq!(validated(&end), [15, 18]);
}

#[track_caller]
fn fails_everywhere(what: &str, cause: &str) {
    let end = run(3, what);
    assert!(!end.status.success());
    assert!(values(&end, "parameters ").is_empty(), "{:?}", end.stdout);
    let said = end.stderr.join("\n");
    assert!(said.contains("rank 1"), "{said}");
    assert!(said.contains(cause), "{said}");
}

#[test]
fn data_that_cannot_be_read_on_one_rank_end_all() {
    fails_everywhere("torn", "is torn");
}

#[test]
fn a_panic_on_one_rank_ends_all() {
    fails_everywhere("panic", "no point after");
}

#[test]
fn burns_experiment_log_is_there_where_the_program_has_no_other() {
    for (log, there) in [("warn", false), ("off", true)] {
        let folder = tempfile::tempdir().unwrap();
        let end = start_logging(log, folder.path(), 2, "train").succeed();
        // Burn would say that it cannot have it.
        assert_eq!(end.stderr, [""; 0]);
        assert_eq!(folder.path().join("experiment.log").exists(), there);
    }
}

/// Interrupts an endless training of two ranks after its first checkpoint: all of it ends after the same
/// step, and the checkpoint is there.
#[track_caller]
fn stops_all(interrupt: impl Fn(&Job, [u32; 2]), reason: &str) -> JobEnd {
    let folder = tempfile::tempdir().unwrap();
    let job = start(folder.path(), 2, "endless");
    let saved = || {
        let files = folder.path().join("checkpoint").read_dir();
        files.map_or(0, Iterator::count)
    };
    let watchdog = Watchdog::start("the first checkpoint", Duration::from_secs(120));
    while saved() < 3 {
        thread::sleep(Duration::from_millis(5));
    }
    drop(watchdog);
    let ids = [0, 1].map(|rank| {
        let id = fs::read_to_string(folder.path().join(format!("{rank}.pid")));
        id.unwrap().parse().unwrap()
    });
    interrupt(&job, ids);
    let end = job.end();
    one_value(&end, "parameters ", 2);
    let reasons = values(&end, "interrupted: ");
    assert_eq!(reasons.len(), 2, "{:?} {:?}", end.stdout, end.stderr);
    assert!(reasons.iter().any(|said| said == reason), "{reasons:?}");
    // Model, optimizer and scheduler of one epoch.
    assert_eq!(saved(), 3);
    assert_gone(&ids);
    end
}

#[test]
fn ctrl_c_stops_all_ranks_after_the_same_step() {
    let end = stops_all(|job, _| job.signal(Signal::INT), "asked to stop by SIGTERM");
    let said = end.stderr.join("\n");
    assert!(said.contains("interrupted by SIGINT"), "{said}");
}

#[test]
fn a_signal_to_one_rank_stops_all() {
    let end = stops_all(|_, ids| signal_process(ids[1], Signal::INT), "asked to stop by SIGINT");
    assert!(end.status.success(), "{:?}", end.stderr);
    let reasons = values(&end, "interrupted: ");
    assert!(reasons.iter().any(|said| said == "rank 1 was asked to stop"), "{reasons:?}");
}
