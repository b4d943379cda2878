//! Processes that train on graphics adapters. Where there is none, the test says so.

#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::Job;

#[test]
fn wgpu_processes_end_with_the_same_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder.path()).arg("10");
    command.args(["--nproc", "2", "--device", "wgpu"]);
    command.env("BONFIRE_LOG", "warn");
    let end = Job::start(&mut command).end();
    let none = |line: &&String| line.contains("but 0 of that kind answered");
    if let Some(line) = end.stderr.iter().find(none) {
        println!("skipped: {line}");
        return;
    }
    assert!(end.status.success(), "{:?}", end.stderr);
    let digest = |line: &String| Some(line.split("parameters ").nth(1)?.to_owned());
    let digests: Vec<String> = end.stdout.iter().filter_map(digest).collect();
    assert_eq!(digests.len(), 2, "{:?}", end.stdout);
    assert_eq!(digests[0], digests[1]);
}
