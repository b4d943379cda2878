//! `bonfire run --min-nproc-per-node`: a job that goes on without ranks that fail. The ranks are shell
//! scripts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::{Job, JobEnd};

fn run(flags: &[&str], script: &str) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
    command.arg("run").args(flags);
    Job::start(command.args(["--", "/bin/sh", "-c", script])).end()
}

#[test]
fn a_job_goes_on_without_a_rank_while_enough_are_left() {
    let script = "if [ $RANK = 1 ]; then echo no data >&2; exit 3; fi; sleep 0.5; echo done";
    let flags = ["--nproc-per-node=3", "--min-nproc-per-node=2"];
    let mut end = run(&flags, script);
    assert!(end.status.success(), "{:?}", end.stderr);
    end.stdout.sort();
    assert_eq!(end.stdout, ["[rank 0] done", "[rank 2] done"]);
    let said = end.stderr.join("\n");
    assert!(said.contains("rank 1 (process "), "{said}");
    assert!(
        said.contains("the job goes on without it: 2 ranks"),
        "{said}"
    );
}

#[test]
fn one_rank_too_many_ends_the_job_and_the_first_is_named() {
    let script = "if [ $RANK = 1 ]; then exit 3; fi; if [ $RANK = 2 ]; then sleep 0.5; exit 4; fi; \
                  exec sleep 1000";
    let flags = ["--nproc-per-node=3", "--min_nproc_per_node=2"];
    let end = run(&flags, script);
    assert_eq!(end.status.code(), Some(3), "{:?}", end.stderr);
    let verdict = end.stderr.last().unwrap();
    assert!(
        verdict.starts_with("error: root cause: rank 1 "),
        "{verdict}"
    );
}

#[test]
fn a_stopped_rank_does_not_keep_a_job_that_is_done() {
    let script = "if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 0.5; echo done";
    let flags = ["--nproc-per-node=3", "--min-nproc-per-node=1"];
    let end = run(&flags, script);
    assert!(end.status.success(), "{:?}", end.stderr);
    assert_eq!(end.stdout.len(), 2, "{:?}", end.stdout);
    let said = end.stderr.join("\n");
    assert!(said.contains("was stopped"), "{said}");
}
