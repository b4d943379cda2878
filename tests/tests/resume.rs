//! A training that is killed again and again comes to the same end, bit for bit.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bonfire_testkit::{Job, JobEnd, Signal, assert_gone, signal_process};

const STEPS: &str = "120";

fn start(folder: &Path) -> Job {
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder).arg(STEPS);
    command
        .args(["--nproc", "2", "--device", "cpu"])
        .env("BONFIRE_LOG", "warn");
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
fn wait_past(folder: &Path, step: u64, extra: Duration) {
    let started = Instant::now();
    while last_step(folder) < step {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "no step {step}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(extra);
}

#[test]
fn a_killed_training_goes_on_to_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let whole = digest(&start(&folder.path().join("whole")).end());

    let interrupted = folder.path().join("interrupted");
    for (round, step) in [5_u64, 40, 75].into_iter().enumerate() {
        let job = start(&interrupted);
        let ids = job.next_numbers(2);
        wait_past(
            &interrupted,
            step,
            Duration::from_micros(700 * round as u64),
        );
        // Now the one that writes, now the other.
        signal_process(ids[round % 2], Signal::KILL);
        let end = job.end();
        assert!(!end.status.success(), "{:?}", end.stderr);
        assert_gone(&ids);
        assert!(last_step(&interrupted) < STEPS.parse().unwrap());
    }
    assert_eq!(digest(&start(&interrupted).end()), whole);
}
