//! A training that is killed again and again comes to the same end, bit for bit.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bonfire_testkit::{Job, JobEnd, Signal, assert_gone, signal_process};

const STEPS: &str = "200";

fn start(folder: &Path, more: &[&str]) -> Job {
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder).arg(STEPS);
    command.args(["--nproc", "2", "--device", "cpu"]).args(more).env("BONFIRE_LOG", "warn");
    Job::start(&mut command)
}

/// What the ranks printed of the final parameters: all the same.
#[track_caller]
fn digest(end: &JobEnd) -> String {
    assert!(end.status.success(), "{:?}", end.stderr);
    let lines = end.stdout.iter();
    let found = lines.filter_map(|line| line.split("parameters ").nth(1));
    let found: Vec<&str> = found.collect();
    let [first, second] = found[..] else {
        panic!("both ranks print a digest, but: {found:?}");
    };
    assert_eq!(first, second);
    first.to_owned()
}

/// The step of the last checkpoint.
fn last_step(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let steps = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Waits until the job has saved a step, and a little longer, so that the kill hits any moment.
fn wait_past(folder: &Path, kill: Kill) {
    let started = Instant::now();
    while last_step(folder) < kill.step {
        assert!(started.elapsed() < Duration::from_secs(120), "no step {}", kill.step);
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(kill.later);
}

/// When a rank is killed.
#[derive(Clone, Copy, Debug)]
struct Kill {
    /// After this step has been saved,
    step: u64,
    /// and so much later: between two steps, or in the middle of one or of a checkpoint.
    later: Duration,
    rank: usize,
}

/// Three kills, each in a third of the first half of the training, at random.
fn kills() -> [Kill; 3] {
    let random = || RandomState::new().hash_one(0);
    let kills = [0, 35, 70].map(|first| Kill {
        step: first + random() % 35,
        later: Duration::from_micros(random() % 4000),
        rank: (random() % 2) as usize,
    });
    println!("{kills:?}");
    kills
}

#[test]
fn a_killed_training_goes_on_to_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let whole = digest(&start(&folder.path().join("whole"), &[]).end());

    let interrupted = folder.path().join("interrupted");
    for kill in kills() {
        let job = start(&interrupted, &[]);
        let ids = job.next_numbers(2);
        wait_past(&interrupted, kill);
        signal_process(ids[kill.rank], Signal::KILL);
        let end = job.end();
        assert!(!end.status.success(), "{:?}", end.stderr);
        assert_gone(&ids);
        assert!(last_step(&interrupted) < STEPS.parse().unwrap());
    }
    assert_eq!(digest(&start(&interrupted, &[]).end()), whole);
}

/// As before, but nobody starts it again: the launcher does, from the last checkpoint.
#[test]
fn a_killed_training_restarts_by_itself_from_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let whole = digest(&start(&folder.path().join("whole"), &[]).end());

    let restarted = folder.path().join("restarted");
    let job = start(&restarted, &["--max-restarts", "3"]);
    for kill in kills() {
        let ids = job.next_numbers(2);
        wait_past(&restarted, kill);
        signal_process(ids[kill.rank], Signal::KILL);
    }
    job.next_numbers(2);
    assert_eq!(digest(&job.end()), whole);
}
