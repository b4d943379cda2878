//! `bonfire run` with real processes. The ranks are shell scripts: what they do in between is not
//! the launcher's business.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bonfire_testkit::{
    Job, JobEnd, Signal, Watchdog, assert_each_says, assert_gone, signal_process, wait_until_gone,
};

const BONFIRE: &str = env!("CARGO_BIN_EXE_bonfire");

fn bonfire(arguments: &[&str]) -> Job {
    Job::start(Command::new(BONFIRE).arg("run").args(arguments))
}

/// Starts `nproc` ranks of a shell script.
fn ranks(nproc: &str, script: &str) -> Job {
    bonfire(&["--nproc-per-node", nproc, "--", "/bin/sh", "-c", script])
}

/// The command ends with this code and exactly one line, which contains `expected`.
#[track_caller]
fn refused(arguments: &[&str], code: i32, expected: &str) {
    let end = bonfire(arguments).end_with(code);
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    assert!(end.stderr[0].starts_with("error: "), "{:?}", end.stderr);
    assert!(end.stderr[0].contains(expected), "{:?} lacks {expected:?}", end.stderr);
    assert!(end.stdout.is_empty(), "{:?}", end.stdout);
}

#[test]
fn each_rank_gets_its_place_and_a_shared_token() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR \
                  $BONFIRE_AGENT_STORE $RAYON_NUM_THREADS $GLIBC_TUNABLES $MASTER_PORT $BONFIRE_JOB_TOKEN";
    let end = ranks("3", script).succeed();
    let cores = thread::available_parallelism().unwrap().get();
    let threads = (cores / 3).max(1);
    let memory = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";
    let mut seen = end.stdout;
    seen.sort();
    assert_eq!(seen.len(), 3);
    let shared = seen[0].rsplitn(3, ' ').take(2).collect::<Vec<_>>();
    let (token, port) = (shared[0], shared[1]);
    assert_eq!(token.len(), 64, "{seen:?}");
    for (rank, line) in seen.iter().enumerate() {
        let place = format!(
            "[rank {rank}] {rank} 3 {rank} 3 127.0.0.1 1 {threads} {memory} {port} {token}"
        );
        assert_eq!(*line, place);
    }
}

#[test]
fn two_jobs_at_once_need_no_ports() {
    let jobs: Vec<Job> = (0..3).map(|_| ranks("2", "echo $MASTER_PORT; sleep 0.2")).collect();
    let mut ports: Vec<String> = Vec::new();
    for job in jobs {
        let end = job.succeed();
        ports.extend(end.stdout.iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()));
    }
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
}

#[test]
fn the_user_s_threads_and_arguments_are_left_alone() {
    let flags = ["--nproc-per-node=2", "/usr/bin/env", "RAYON_NUM_THREADS=7", "/bin/sh", "-c"];
    let arguments = ["echo $RAYON_NUM_THREADS \"$@\"", "--", "--nnodes", "-x"];
    let mut end = bonfire(&[&flags[..], &arguments].concat()).end();
    end.stdout.sort();
    assert_eq!(end.stdout, ["[rank 0] 7 --nnodes -x", "[rank 1] 7 --nnodes -x"]);
}

#[test]
fn one_rank_has_the_output_for_itself() {
    let end = ranks("1", "echo $RANK of $WORLD_SIZE; echo trouble >&2").end();
    assert!(end.status.success());
    assert_eq!(end.stdout, ["0 of 1"]);
    assert_eq!(end.stderr, ["trouble"]);
}

#[test]
fn lines_of_different_ranks_never_mix() {
    // Each line is written in two halves, by four ranks at once.
    let script =
        "i=0; while [ $i -lt 200 ]; do printf begin-; printf '%s\\n' end; i=$((i+1)); done";
    let end = ranks("4", script).succeed();
    for rank in 0..4 {
        let whole = format!("[rank {rank}] begin-end");
        assert_eq!(end.stdout.iter().filter(|line| **line == whole).count(), 200);
    }
    assert_eq!(end.stdout.len(), 800);
}

#[test]
fn a_failing_rank_ends_all_and_has_the_last_word() {
    let script = "echo id $$; if [ $RANK = 1 ]; then sleep 0.3; echo no data in train.txt >&2; \
                  exit 5; fi; exec sleep 1000";
    let job = ranks("3", script);
    let ids = job.next_numbers(3);
    let end = job.end_with(5);
    assert_gone(&ids);
    let last = end.stderr.last().unwrap();
    assert_eq!(last, "  [rank 1] no data in train.txt");
    let verdict = &end.stderr[end.stderr.len() - 2];
    assert!(verdict.starts_with("error: root cause: rank 1 (process "), "{verdict}");
    assert!(verdict.ends_with("exited with code 5; its last lines:"), "{verdict}");
}

#[test]
fn a_rank_that_blames_a_peer_is_not_the_root_cause() {
    // Exit code 75 is what workers of this project use for it.
    let script = "if [ $RANK = 0 ]; then exit 75; fi; sleep 0.3; exit 4";
    let end = ranks("2", script).end_with(4);
    assert!(end.stderr.last().unwrap().contains("rank 1 "), "{:?}", end.stderr);
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    let job = ranks("3", "echo id $$; exec sleep 1000");
    let ids = job.next_numbers(3);
    signal_process(ids[1], Signal::KILL);
    let end = job.end_with(137);
    assert_gone(&ids);
    let verdict = end.stderr.last().unwrap();
    let process = format!("(process {})", ids[1]);
    assert_each_says([verdict], &[&process, "killed by signal 9 (SIGKILL)", "out of memory"]);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let script = "trap '' TERM; echo id $$; if [ $RANK = 0 ]; then sleep 0.3; exit 1; fi; \
                  while true; do sleep 1; done";
    let job = ranks("2", script);
    let ids = job.next_numbers(2);
    job.end_with(1);
    assert_gone(&ids);
}

#[test]
fn what_ranks_started_ends_with_them() {
    let job = ranks("2", "sleep 1000 >/dev/null 2>&1 & echo id $!; sleep 0.1");
    let ids = job.next_numbers(2);
    job.succeed();
    wait_until_gone(&ids);
}

#[test]
fn killing_the_launcher_leaves_no_rank() {
    let job = ranks("3", "trap '' TERM INT HUP; echo id $$; exec sleep 1000");
    let ids = job.next_numbers(3);
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
    assert!(!job.end().status.success());
}

#[test]
fn killing_the_launcher_leaves_nothing_that_ranks_have_started() {
    // Each rank has a child in the background, which ignores what it can, and one of its own.
    let background = "trap \"\" TERM INT HUP; sleep 1000 & echo id $!; wait";
    let script = format!("sh -c '{background}' & echo id $!; echo id $$; exec sleep 1000");
    let job = ranks("3", &script);
    let ids = job.next_numbers(9);
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
    assert!(!job.end().status.success());
}

/// The process that a launcher leaves behind to end what its ranks have started.
fn guard_of(launcher: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let (head, tail) = stat.rsplit_once(')').unwrap_or_default();
        let mut tail = tail.split_whitespace();
        let is_running = tail.next().is_some_and(|state| state != "Z");
        is_running && head.ends_with("(bonfire-guard") && tail.next() == Some(&launcher.to_string())
    })
}

#[test]
fn a_guard_that_is_killed_is_replaced_and_said() {
    let job = ranks("2", "sleep 1000 & echo id $!; echo id $$; exec sleep 1000");
    let ids = job.next_numbers(4);
    let _watchdog = Watchdog::start("a guard that is killed", Duration::from_secs(60));
    // It has its name a moment after its start.
    let guard = || loop {
        match guard_of(job.id()) {
            Some(id) => break id,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    signal_process(guard(), Signal::KILL);
    // By then the next one has been told of the ranks.
    job.until_told("guard process was killed; another takes its place");
    let second = guard();
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
    wait_until_gone(&[second]);
    assert!(!job.end().status.success());
}

#[test]
fn ctrl_c_ends_all_ranks() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let job = ranks("2", "echo id $$; exec sleep 1000");
        let ids = job.next_numbers(2);
        job.signal(signal);
        let end = job.end_with(code);
        assert_gone(&ids);
        assert!(end.stderr.last().unwrap().contains("interrupted by SIG"), "{:?}", end.stderr);
    }
}

#[test]
fn ctrl_c_lets_a_rank_finish_and_a_second_one_does_not() {
    let script = "trap 'echo saved; exit 0' TERM; echo id $$; while true; do sleep 0.05; done";
    let job = ranks("2", script);
    job.next_numbers(2);
    job.signal(Signal::INT);
    let end = job.end();
    assert_eq!(end.stdout.iter().filter(|line| line.ends_with("saved")).count(), 2);

    let job = ranks("2", "trap 'echo term 1' TERM; echo id $$; while true; do sleep 0.05; done");
    let ids = job.next_numbers(2);
    job.signal(Signal::INT);
    // Both ranks have seen the first one and go on.
    job.next_numbers(2);
    job.signal(Signal::INT);
    job.end_with(130);
    assert_gone(&ids);
}

#[test]
fn an_endless_line_does_not_stop_the_output() {
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo done";
    let end = ranks("2", script).succeed();
    assert_eq!(end.stdout.iter().filter(|line| line.ends_with("] done")).count(), 2);
    let bytes = |line: &String| line.matches('x').count();
    assert_eq!(end.stdout.iter().map(bytes).sum::<usize>(), 6_000_000);
}

#[test]
fn bad_flags_are_one_clear_line() {
    let several = ["--nnodes=2", "--rdzv-endpoint=127.0.0.1:9", "--tls=hosts", "true"];
    refused(&several, 1, "TLS needs a job token");
    refused(&["--nnodes", "1:4", "true"], 2, "keeps its hosts from start to end");
    refused(&["--nproc-per-node", "0", "true"], 2, "a job needs at least 1 rank");
    refused(&["--nproc-per-node", "many", "true"], 2, "expected a number of ranks, auto");
    refused(&["--nnodes", "0", "true"], 2, "a job needs at least 1 host");
    refused(&["--frobnicate", "true"], 2, "unexpected argument '--frobnicate'");
    for flag in ["-m", "--module", "--no-python"] {
        refused(&[flag, "train"], 2, "so a module is `python -m MODULE`");
    }
    for flag in ["--rdzv-conf", "--rdzv_conf"] {
        refused(&[flag, "timeout=9", "true"], 2, "GroupOptions in the program");
    }
    refused(&["--role=trainer", "true"], 2, "there is nothing like it here");
    refused(&["--rdzv_backend=etcd", "true"], 2, "[possible values: c10d, static]");
    refused(&["--master-port", "65536", "true"], 2, "65536 is not in 0..=65535");
    refused(&["--nproc-per-node", "2"], 2, "<PROGRAM>");
    refused(&["--node-rank", "1", "true"], 1, "--node-rank is 1, but --nnodes is 1");
    refused(&["--nnodes", "2", "true"], 1, "need --master-addr");
    refused(&["--nnodes", "2", "--master-addr", "localhost", "true"], 1, "need --master-port");
    let layout = ["--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "--master-port", "9"];
    refused(&[&layout[..], &["true"]].concat(), 1, "the node rank is 2, but there are 2 nodes");
}

#[test]
fn a_missing_program_is_one_clear_line() {
    refused(&["--nproc-per-node", "2", "no-such-program"], 1, "no program no-such-program");
    refused(&["/etc"], 1, "cannot start /etc as rank 0: Permission denied");
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&["--master-port", &port, "true"], 1, &format!("127.0.0.1:{port}: the port is taken"));
}

/// A benchmark by two ranks, each started by this script.
fn bench(script: &str) -> Command {
    let mut command = Command::new(BONFIRE);
    command
        .args(["run", "--nproc=2", "--", "sh", "-c", script, BONFIRE])
        .args(["bench", "all-reduce", "--min-bytes=64", "--max-bytes=64"])
        .args(["--rotate-bytes=16K", "--warmup=1", "--iters=3"]);
    command
}

/// Rank 1 runs a copy of the program with `end` after its last byte.
fn with_a_copy(end: &str, builds: &str) -> JobEnd {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    // If this process wrote it, a child of another test could keep it open for writing: ETXTBSY.
    let script = "cp \"$0\" \"$1\" && printf %s \"$2\" >> \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, BONFIRE]).arg(&copy).arg(end);
    assert!(command.status().unwrap().success());
    let script = "if [ $RANK = 1 ]; then exec \"$COPY\" \"$@\"; fi; exec \"$0\" \"$@\"";
    Job::start(bench(script).env("COPY", &copy).env("BONFIRE_BUILDS", builds)).end()
}

#[test]
fn ranks_of_different_builds_do_not_meet_unless_that_is_meant() {
    let end = with_a_copy("", "");
    assert!(end.status.success(), "a true copy: {:?}", end.stderr);
    let end = with_a_copy("changed", "");
    assert!(!end.status.success());
    let parts = ["copy (build ", "start copies of one build", "BONFIRE_BUILDS=any"];
    assert_each_says([end.stderr.join("\n")], &parts);
    let end = with_a_copy("changed", "any");
    assert!(end.status.success(), "on purpose: {:?}", end.stderr);
    let end = with_a_copy("", "all");
    assert_each_says([end.stderr.join("\n")], &["choose same or any"]);
}

/// Rank 1 comes when the others have said that they wait for it.
#[test]
fn ranks_that_wait_long_say_for_whom() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = "if [ $RANK = 0 ]; then exec \"$0\" \"$@\" 2> \"$LOG\"; fi; \
                  until grep 'waiting for rank 1 of 2 (meeting at 127.0.0.1:' \"$LOG\"; do sleep 0.1; done; \
                  exec \"$0\" \"$@\"";
    Job::start(bench(script).env("LOG", &log)).succeed();
}
