//! Processes that train on GPUs. Where there is none, the tests say so.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd};

/// Of one training: minutes, where all kernels have yet to be compiled and the machine is busy.
const LIMIT: Duration = Duration::from_secs(500);

/// Ranks that train for ten steps; `None` where one says that something of this is missing.
fn trained(ranks: usize, device: &[&str], missing: &[&str]) -> Option<JobEnd> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder.path()).arg("10");
    command.args(["--nproc", &ranks.to_string(), "--device"]);
    command.args(device);
    command.env("BONFIRE_LOG", "info");
    // Else ranks over NCCL that share a device are refused.
    command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    let end = Job::start_for(&mut command, LIMIT).end();
    let is_missing = |line: &&String| missing.iter().any(|missing| line.contains(missing));
    if let Some(line) = end.stderr.iter().find(is_missing) {
        println!("skipped: {line}");
        return None;
    }
    assert!(end.status.success(), "{:?}", end.stderr);
    Some(end)
}

/// What all ranks said of their parameters, which is the same.
fn digest(ranks: usize, end: &JobEnd) -> String {
    let digest = |line: &String| Some(line.split("parameters ").nth(1)?.to_owned());
    let mut digests: Vec<String> = end.stdout.iter().filter_map(digest).collect();
    assert_eq!(digests.len(), ranks, "{:?}", end.stdout);
    assert!(digests.iter().all(|one| *one == digests[0]), "{digests:?}");
    digests.remove(0)
}

#[cfg(feature = "wgpu")]
#[test]
fn wgpu_processes_end_with_the_same_parameters() {
    let missing = "but 0 of that kind answered";
    let Some(end) = trained(2, &["wgpu"], &[missing]) else {
        return;
    };
    digest(2, &end);
}

/// On as many devices as there are, which they share, with gradients that stay there.
#[cfg(feature = "cuda")]
fn trained_on_cuda(ranks: usize, route: &str, missing: &[&str]) -> Option<String> {
    let device = ["cuda", "--oversubscribe", "--", "--route", route];
    let missing = [&["cannot train on cuda: "][..], missing].concat();
    let end = trained(ranks, &device, &missing)?;
    let said = |line: &String| line.contains("gradients travel from device to device");
    assert!(end.stderr.iter().any(said), "{:?}", end.stderr);
    Some(digest(ranks, &end))
}

/// The memory of each device is open to the others, so no gradient goes through the host.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_end_with_the_same_parameters() {
    trained_on_cuda(3, "auto", &[]);
}

/// Those of two processes are the ones that they end with without NCCL; with three, it adds in an order of its own.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_end_with_the_same_parameters_over_nccl() {
    // Before 2.30.3 NCCL takes no ranks that share a device, whatever it is told.
    let missing = ["no NCCL (", "is on the device of rank"];
    // What runs while Burn measures which kernels are the fastest may round otherwise than those.
    if trained_on_cuda(2, "nccl", &missing).is_none() {
        return;
    }
    let [over_nccl, without] = ["nccl", "device"].map(|route| trained_on_cuda(2, route, &[]));
    assert_eq!(over_nccl, without);
    trained_on_cuda(3, "nccl", &missing);
}
