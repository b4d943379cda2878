//! Processes that train on GPUs. Where there is none, the tests say so.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd};

/// Of one training: minutes, where all kernels have yet to be compiled and the machine is busy.
const LIMIT: Duration = Duration::from_secs(500);

/// Ranks that train for ten steps; `None` where such a device is missing.
fn trained(ranks: usize, device: &[&str], missing: &str) -> Option<JobEnd> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder.path()).arg("10");
    command.args(["--nproc", &ranks.to_string(), "--device"]);
    command.args(device);
    command.env("BONFIRE_LOG", "info");
    let end = Job::start_for(&mut command, LIMIT).end();
    if let Some(line) = end.stderr.iter().find(|line| line.contains(missing)) {
        println!("skipped: {line}");
        return None;
    }
    assert!(end.status.success(), "{:?}", end.stderr);
    Some(end)
}

/// That all ranks said the same of their parameters.
fn assert_same(ranks: usize, end: &JobEnd) {
    let digest = |line: &String| Some(line.split("parameters ").nth(1)?.to_owned());
    let digests: Vec<String> = end.stdout.iter().filter_map(digest).collect();
    assert_eq!(digests.len(), ranks, "{:?}", end.stdout);
    assert!(digests.iter().all(|one| *one == digests[0]), "{digests:?}");
}

#[cfg(feature = "wgpu")]
#[test]
fn wgpu_processes_end_with_the_same_parameters() {
    let missing = "but 0 of that kind answered";
    let Some(end) = trained(2, &["wgpu"], missing) else {
        return;
    };
    assert_same(2, &end);
}

/// On as many devices as there are, which they share: the memory of each is open to the others, so no gradient goes
/// through the host.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_end_with_the_same_parameters() {
    let missing = "cannot train on cuda: ";
    let Some(end) = trained(3, &["cuda", "--oversubscribe"], missing) else {
        return;
    };
    assert_same(3, &end);
    let said = |line: &String| line.contains("gradients travel from device to device");
    assert!(end.stderr.iter().any(said), "{:?}", end.stderr);
}
