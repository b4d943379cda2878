//! Programs that launch themselves, with real processes that communicate.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{
    Job, JobEnd, Signal, assert_gone, of_another_launcher, signal_process, wait_until_gone,
};

/// Far more than any job here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The fixture, on the CPU, without a word about what goes well.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_self_launching"));
    command.args(arguments).args(["--device", "cpu"]).env("BONFIRE_LOG", "warn");
    command
}

fn start(role: &str, nproc: &str) -> Job {
    Job::start(&mut program(&[role, "--nproc", nproc]))
}

/// Three ranks of a job that no launcher of ours started.
fn workers(role: &str) -> Vec<JobEnd> {
    of_another_launcher(3, LIMIT, || program(&[role]))
}

/// The one line that starts with `Error: root cause`.
#[track_caller]
fn verdict(end: &JobEnd) -> &str {
    let mut verdicts = end.stderr.iter().filter(|line| line.starts_with("Error: root cause"));
    let verdict = verdicts.next().unwrap_or_else(|| panic!("no verdict in {:?}", end.stderr));
    assert!(verdicts.next().is_none(), "{:?}", end.stderr);
    verdict
}

/// Runs a job whose rank 1 fails; its own words must be the last, and nothing may be left.
#[track_caller]
fn fails(role: &str, how: &str, last: &str) {
    for nproc in ["2", "3"] {
        let job = start(role, nproc);
        let ids = job.next_numbers(nproc.parse().unwrap());
        let end = job.end_with(1);
        assert_gone(&ids);
        let verdict = verdict(&end);
        assert!(verdict.contains("root cause: rank 1 (process "), "{:?}", end.stderr);
        assert!(verdict.contains(how), "{verdict:?} lacks {how:?}");
        let last_line = end.stderr.last().unwrap();
        assert!(last_line.contains(last), "{last_line:?} lacks {last:?}");
    }
}

/// The command ends with this code and one line on its error stream, which contains `expected`.
#[track_caller]
fn refused(command: &mut Command, code: i32, expected: &str) {
    let end = Job::start(command).end_with(code);
    let told: Vec<_> =
        end.stderr.iter().filter(|line| line.to_lowercase().contains("error")).collect();
    assert_eq!(told.len(), 1, "{:?}", end.stderr);
    assert!(told[0].contains(expected), "{:?} lacks {expected:?}", told[0]);
    assert_eq!(end.stderr.last(), Some(told[0]), "the error comes last");
}

#[test]
fn one_rank_runs_in_the_program_itself() {
    let job = start("finish", "1");
    let own = job.id();
    assert_eq!(job.next_numbers(1), [own]);
    job.succeed();
}

#[test]
fn several_ranks_are_processes_that_communicate() {
    for nproc in [2, 4] {
        let job = start("finish", &nproc.to_string());
        let mut ids = job.next_numbers(nproc);
        job.succeed();
        assert_gone(&ids);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), nproc);
    }
}

#[test]
fn a_rank_that_ends_with_a_handle_of_its_group_left_has_left_the_group() {
    start("forget", "3").succeed();
}

#[test]
fn any_launcher_s_environment_makes_workers() {
    for end in workers("finish") {
        assert!(end.status.success(), "{:?}", end.stderr);
    }
}

#[test]
fn workers_of_another_launcher_say_who_failed() {
    let ends = workers("error");
    let codes: Vec<_> = ends.iter().map(|end| end.status.code()).collect();
    assert_eq!(codes, [Some(75), Some(1), Some(75)]);
    let own = "[rank 1] error: step 20: no more data";
    assert_eq!(ends[1].stderr.last().unwrap(), own);
    for (rank, end) in [(0, &ends[0]), (2, &ends[2])] {
        let told = format!("[rank {rank}] error: rank 1 failed: step 20: no more data");
        assert_eq!(*end.stderr.last().unwrap(), told);
    }
}

#[test]
fn an_error_of_one_rank_ends_all() {
    fails("error", "exited with code 1", "[rank 1] error: step 20: no more data");
}

/// Without the launcher's verdict, which says it again.
#[test]
fn an_error_that_ranks_agree_on_is_told_by_one() {
    for (role, teller) in [("told-by-one", 1), ("told-by-all", 0)] {
        for (rank, end) in workers(role).iter().enumerate() {
            let (code, said) = if rank == teller {
                let line = format!("[rank {rank}] error: the options contradict each other");
                (1, vec![line])
            } else {
                (75, Vec::new())
            };
            assert_eq!(end.status.code(), Some(code), "{role}: {end:?}");
            assert_eq!(end.stderr, said, "{role}");
        }
    }
}

/// Each rank meets it by itself; the files have it from all.
#[test]
fn an_error_that_all_ranks_meet_is_shown_once() {
    let folder = tempfile::tempdir().unwrap();
    let log_dir = folder.path().to_str().unwrap();
    let flags = ["fail-alone", "--nproc", "4", "--job-id=j", "--log-dir"];
    let end = Job::start(&mut program(&[&flags[..], &[log_dir]].concat())).end_with(1);
    let error = "error: no such file";
    let shown: Vec<_> = end
        .stderr
        .iter()
        .filter(|line| line.starts_with("[rank ") && line.ends_with(error))
        .collect();
    let [shown] = shown[..] else { panic!("not one line: {:#?}", end.stderr) };
    let who = shown["[rank ".len()..].chars().next().unwrap();
    let others: Vec<String> = "0123".replace(who, "").chars().map(String::from).collect();
    let note = format!(
        "ranks {}, {} and {} had the same error as rank {who}",
        others[0], others[1], others[2]
    );
    assert!(end.stderr.contains(&note), "{note}: {:#?}", end.stderr);
    for rank in 0..4 {
        let log = folder.path().join(format!("j/attempt_0/{rank}/stderr.log"));
        let log = fs::read_to_string(log).unwrap();
        assert!(log.ends_with("error: no such file\n"), "rank {rank}: {log}");
    }
}

#[test]
fn a_panic_of_one_rank_ends_all() {
    fails("panic", "exited with code 1", "[rank 1] error: rank 1 panicked: step 20: index out of");
}

#[test]
fn an_exit_in_the_middle_ends_all() {
    fails("exit", "exited with code 3", "root cause: rank 1");
}

#[test]
fn an_abort_ends_all() {
    fails("abort", "was killed by signal 6 (SIGABRT)", "root cause: rank 1");
}

#[test]
fn a_rank_that_leaves_too_early_is_named_by_the_others() {
    let job = start("leave", "3");
    let ids = job.next_numbers(3);
    let end = job.end_with(1);
    assert_gone(&ids);
    let verdict = verdict(&end);
    assert!(verdict.contains("root cause: rank 1"), "{verdict}");
    // The others say which operation they were in; if it is the same, once.
    let others = end
        .stderr
        .iter()
        .filter(|line| line.starts_with("[rank ") && line.contains("rank 1 failed"))
        .count();
    let together = |line: &String| line.contains("had the same error as rank");
    let alike = end.stderr.iter().filter(|line| together(line)).count();
    assert_eq!(others + alike, 2, "{:?}", end.stderr);
    // The launcher says what each was doing.
    let last = |line: &&String| line.starts_with("  rank 1 left no record");
    assert_eq!(end.stderr.iter().filter(last).count(), 1, "{:?}", end.stderr);
    assert_eq!(end.stderr.last().unwrap(), verdict);
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    for victim in 0..3 {
        let job = start("forever", "3");
        let mut by_rank = [0; 3];
        for _ in 0..3 {
            let line = job.next_line();
            let words: Vec<&str> = line.split(['[', ']', ' ']).filter(|w| !w.is_empty()).collect();
            by_rank[words[1].parse::<usize>().unwrap()] = words[3].parse().unwrap();
        }
        signal_process(by_rank[victim], Signal::KILL);
        let end = job.end_with(1);
        assert_gone(&by_rank);
        let verdict = verdict(&end);
        let expected =
            format!("rank {victim} (process {}) was killed by signal 9", by_rank[victim]);
        assert!(verdict.contains(&expected), "{:?}", end.stderr);
    }
}

#[test]
fn killing_the_launcher_leaves_no_rank() {
    let job = start("forever", "3");
    let ids = job.next_numbers(3);
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
    job.end();
}

#[test]
fn ctrl_c_ends_all_ranks() {
    let job = start("forever", "2");
    let ids = job.next_numbers(2);
    job.signal(Signal::INT);
    let end = job.end();
    assert!(!end.status.success());
    assert_gone(&ids);
    assert!(end.stderr.last().unwrap().contains("interrupted by SIGINT"), "{:?}", end.stderr);
}

#[test]
fn the_error_of_the_only_rank_is_one_line() {
    refused(&mut program(&["fail-alone"]), 1, "Error: no such file");
}

#[test]
fn the_launchers_flags_are_the_programs_own() {
    let folder = tempfile::tempdir().unwrap();
    let log_dir = folder.path().to_str().unwrap();
    let flags = ["error", "--nproc_per_node", "2", "--max-restarts", "1"];
    let log = ["--log-dir", log_dir, "--job-id=j"];
    Job::start(&mut program(&[&flags[..], &log].concat())).end_with(1);
    for attempt in 0..2 {
        let attempt = folder.path().join(format!("j/attempt_{attempt}"));
        for rank in 0..2 {
            let output = fs::read_to_string(attempt.join(format!("{rank}/stdout.log"))).unwrap();
            assert!(output.starts_with("pid "), "{output}");
        }
        let flights = bonfire::collective::read_flight_records(&attempt.join("flights")).unwrap();
        let culprit = flights.iter().find(|flight| flight.rank.get() == 1).unwrap();
        let failure = culprit.failure.as_deref().unwrap_or_default();
        assert!(failure.contains("no more data"), "{failure}");
        assert_eq!(culprit.operations[0].operation.seq, 19);
    }
    // A single rank needs an agent for its log, too.
    let alone = program(&["finish", "--nproc=1", "--log-dir", log_dir, "--job-id=alone"]);
    Job::start(&mut { alone }).succeed();
    assert!(folder.path().join("alone/attempt_0/0/stdout.log").exists());
}

#[test]
fn bad_flags_are_one_clear_line() {
    refused(&mut program(&["finish", "--nproc", "0"]), 1, "a job needs at least 1 rank");
    refused(&mut program(&["finish", "--nproc=two"]), 1, "expected a number of ranks");
    refused(&mut program(&["finish", "--npoc", "4"]), 1, "did you mean --nproc");
    refused(&mut program(&["finish", "-n", "4"]), 1, "unexpected argument '-n' found");
    let device = &mut Command::new(env!("CARGO_BIN_EXE_self_launching"));
    refused(
        device.args(["finish", "--device", "tpu"]),
        1,
        "unknown device kind `tpu`; choose auto, cpu, cuda or wgpu",
    );
}

#[test]
fn help_is_printed_in_place_of_training() {
    let end = Job::start(&mut program(&["finish", "--help"])).succeed();
    let said = end.stdout.join("\n");
    assert!(said.contains("--nproc-per-node") && said.contains("--device"), "{said}");
    assert!(!said.contains("pid "), "{said}");
}

#[test]
fn what_follows_two_hyphens_is_the_programs_own() {
    Job::start(program(&["finish"]).args(["--", "--npoc", "-n", "4"])).succeed();
}

#[test]
fn a_bad_environment_is_one_clear_line() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2, but WORLD_SIZE is 2"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "WORLD_SIZE must be a whole number from 1"),
        (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK must be a whole number"),
        (&[("RANK", "0")], "WORLD_SIZE is not set"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR is not set"),
    ];
    for (variables, expected) in cases {
        refused(program(&["finish"]).envs(variables.iter().copied()), 1, expected);
    }
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = program(&["finish"]);
    command.envs([("RANK", "0"), ("WORLD_SIZE", "2")]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
    refused(&mut command, 1, &format!("127.0.0.1:{port}: the port is taken"));
}
