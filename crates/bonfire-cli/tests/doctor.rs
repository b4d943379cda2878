//! `bonfire doctor`, as a user runs it, on a machine with or without GPUs.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::{Job, JobEnd, assert_each_says};
use serde_json::Value;

fn doctor(arguments: &[&str]) -> JobEnd {
    Job::start(Command::new(env!("CARGO_BIN_EXE_bonfire")).arg("doctor").args(arguments)).end()
}

#[test]
fn it_succeeds_and_says_in_one_line_what_is_missing() {
    let end = doctor(&[]).with_code(0);
    assert_eq!(end.stderr, Vec::<String>::new());
    let text = end.stdout.join("\n");
    assert_each_says([&text], &["processors: ", "memory: ", "/dev/shm: ", "network lo: "]);
    let missing: Vec<_> = end.stdout.iter().filter(|line| line.starts_with("GPUs: ")).collect();
    match missing.as_slice() {
        [line] => assert!(line.contains("CUDA"), "{line}"),
        [] => assert!(text.contains("GPU 0: "), "{text}"),
        _ => panic!("more than one line: {text}"),
    }
}

#[test]
fn its_json_has_the_same_facts() {
    let end = doctor(&["--json"]).with_code(0);
    let report: Value = serde_json::from_str(&end.stdout.join("\n")).unwrap();
    let allowed = report["host"]["processors"]["allowed"].as_u64().unwrap();
    assert!(allowed > 0, "{report}");
    let state = report["gpus"]["state"].as_str().unwrap();
    assert!(["missing", "found"].contains(&state), "{report}");
    for problem in report["problems"].as_array().unwrap() {
        assert!(!problem["remedy"].as_str().unwrap().is_empty(), "{problem}");
    }
}

#[test]
fn a_job_s_token_is_not_shown() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.arg("doctor").env("BONFIRE_JOB_TOKEN", "do-not-show");
    let end = Job::start(&mut command).succeed();
    assert!(!end.stdout.join("\n").contains("do-not-show"));
}
