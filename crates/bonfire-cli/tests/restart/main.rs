//! `bonfire run` with restarts, log files and several hosts, whose agents all run on this one. The
//! ranks are shell scripts.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod hosts;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use bonfire_testkit::{
    Console, Job, JobEnd, OwnPort, Signal, assert_gone, script_is_missing, wait_until_stopped,
};

fn bonfire(arguments: &[&str]) -> Command {
    // Also where the tests were started with these signals ignored, as by `nohup`.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,TSTP", env!("CARGO_BIN_EXE_bonfire"), "run"]);
    command.args(arguments);
    command
}

fn shell(flags: &[&str], script: &str) -> Job {
    let script = ["--", "/bin/sh", "-c", script];
    // A job of its own, as a shell starts it: one that this test can continue.
    Job::start(bonfire(&[flags, &script[..]].concat()).process_group(0))
}

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The agent of one of `nnodes` hosts that meet at a port, one rank each unless `flags` say otherwise.
fn agent((node, nnodes): (usize, usize), port: &OwnPort, flags: &[&str], script: &str) -> Command {
    let (node, count, port) = (node.to_string(), nnodes.to_string(), port.to_string());
    let hosts = ["--nnodes", &count, "--node_rank", &node];
    let place = [&hosts[..], &["--master_addr=127.0.0.1", "--master_port", &port]].concat();
    let script = ["--", "/bin/sh", "-c", script];
    let mut command = bonfire(&[&place[..], flags, &script[..]].concat());
    command.env("BONFIRE_JOB_TOKEN", "ab".repeat(32));
    command
}

/// The agents of a job on several hosts, and the port that is theirs.
fn agents(nnodes: usize, flags: &[&str], script: &str) -> (OwnPort, Vec<Job>) {
    let port = OwnPort::new();
    let start = |node| Job::start(&mut agent((node, nnodes), &port, flags, script));
    let jobs = (0..nnodes).map(start).collect();
    (port, jobs)
}

fn ends(jobs: Vec<Job>) -> Vec<JobEnd> {
    jobs.into_iter().map(Job::end).collect()
}

#[track_caller]
fn says(end: &JobEnd, expected: &str) {
    let text = end.stderr.join("\n");
    assert!(text.contains(expected), "{text} lacks {expected:?}");
}

#[test]
fn agents_that_wait_long_say_for_whom() {
    let port = OwnPort::new();
    let start = |node| Job::start(&mut agent((node, 3), &port, &[], "true"));
    let second = start(1);
    second.until_printed(&format!(
        "waiting for the store at 127.0.0.1:{port}, on the host of rank 0"
    ));
    let first = start(0);
    first.until_printed(&format!("waiting for node 2 of 3 (meeting at 127.0.0.1:{port})"));
    for end in ends(vec![first, second, start(2)]) {
        assert!(end.status.success(), "{:?}", end.stderr);
    }
}

#[test]
fn the_environment_says_what_torchrun_says() {
    let script = "echo $NODE_RANK $GROUP_RANK $GROUP_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT \
                  $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID";
    let end = shell(&["--standalone", "--max_restarts=2", "--rdzv_id=me"], script).succeed();
    assert_eq!(end.stdout, ["0 0 1 0 2 me"]);
}

#[test]
fn all_ranks_start_again_until_the_job_succeeds() {
    // Rank 1 fails in the first two attempts; rank 0 would run for ever in them.
    let script = "echo attempt $TORCHELASTIC_RESTART_COUNT; \
                  if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi; \
                  if [ $RANK = 1 ]; then echo lost >&2; exit 3; fi; exec sleep 1000";
    let end = shell(&["--nproc-per-node=2", "--max-restarts=3"], script).succeed();
    for attempt in 0..3 {
        for rank in 0..2 {
            let line = format!("[rank {rank}] attempt {attempt}");
            assert_eq!(end.stdout.iter().filter(|said| **said == line).count(), 1);
        }
    }
    assert_eq!(end.stdout.len(), 6);
    says(&end, "root cause: rank 1");
    says(&end, "starting all ranks again: restart 2 of 3");
}

#[test]
fn restarts_are_counted_and_come_to_an_end() {
    let script = "echo again; exit 4";
    let end = shell(&["--nproc-per-node=2", "--max-restarts=2"], script).end_with(4);
    let mut starts = end.stdout;
    starts.sort();
    // A rank can be ended before it speaks, but not before another has failed.
    assert!(starts.len() >= 3, "{starts:?}");
    assert!(end.stderr.last().unwrap().contains("exited with code 4"));
}

#[test]
fn an_interrupted_job_is_not_started_again() {
    let script = "echo id $$; trap 'exit 9' TERM; while true; do sleep 0.05; done";
    let job = shell(&["--nproc-per-node=2", "--max-restarts=9"], script);
    let ids = job.next_numbers(2);
    job.signal(Signal::TERM);
    let end = job.end_with(143);
    assert_gone(&ids);
    assert!(end.stdout.is_empty(), "{:?}", end.stdout);
}

/// Ranks that need half a second to save when they are asked to end.
const SAVES: &str =
    "trap 'sleep 0.5; echo saved; exit 0' TERM; echo id $$; while true; do sleep 0.05; done";

#[test]
fn ranks_save_though_one_signal_arrives_twice() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let job = shell(&["--nproc-per-node=2"], SAVES);
        let ids = job.next_numbers(2);
        job.signal(signal);
        job.signal(signal);
        let end = job.end_with(code);
        let mut saved = end.stdout;
        saved.sort();
        assert_eq!(saved, ["[rank 0] saved", "[rank 1] saved"]);
        assert_gone(&ids);
    }
}

#[test]
fn ranks_save_when_the_terminal_is_closed() {
    let job = shell(&["--nproc-per-node=2"], SAVES);
    let ids = job.next_numbers(2);
    job.signal(Signal::HUP);
    let end = job.end_with(129);
    assert_eq!(end.stdout.len(), 2, "{:?}", end.stdout);
    says(&end, "interrupted by SIGHUP");
    assert_gone(&ids);
}

#[test]
fn nohup_keeps_a_job_running_when_the_terminal_is_closed() {
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_bonfire"), "run", "--nproc=2", "--"]);
    command.args(["/bin/sh", "-c", SAVES]);
    let job = Job::start(&mut command);
    let ids = job.next_numbers(2);
    job.signal(Signal::HUP);
    job.signal(Signal::TERM);
    job.end_with(143);
    assert_gone(&ids);
}

#[test]
fn ranks_stop_and_go_on_with_their_launcher() {
    let script = "trap 'exit 0' USR1; echo id $$; while true; do sleep 0.05; done";
    let job = shell(&["--nproc-per-node=2"], script);
    let ranks = job.next_numbers(2);
    let all = [&ranks[..], &[job.id()]].concat();
    for _ in 0..3 {
        job.signal(Signal::TSTP);
        wait_until_stopped(&all, true);
        job.signal(Signal::CONT);
        wait_until_stopped(&all, false);
    }
    for rank in ranks {
        bonfire_testkit::signal_process(rank, Signal::USR1);
    }
    job.succeed();
}

/// One that continues jobs, with `fg` and `bg`.
fn interactive_shell() -> Command {
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]);
    shell
}

/// The command as it is typed into a shell, with an end.
fn line(command: &Command, end: &str) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    line.join(" ") + end
}

#[test]
fn ctrl_z_in_a_terminal_stops_the_ranks_too() {
    if let Some(why) = script_is_missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let folder = folder("ctrl-z");
    let script = format!(
        "cd {}; echo $PPID > $RANK.new; echo $$ >> $RANK.new; mv $RANK.new $RANK.ids; \
         while [ ! -e end ]; do sleep 0.05; done",
        folder.display()
    );
    let mut console = Console::start(&interactive_shell());
    console.press(line(&bonfire(&["--nproc=2", "--", "/bin/sh", "-c", &script]), "\n").as_bytes());
    let ids = [0, 1].map(|rank| {
        let file = folder.join(format!("{rank}.ids"));
        while !file.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(|id| id.parse().unwrap()).collect::<Vec<u32>>()
    });
    for _ in 0..3 {
        console.press(b"\x1a");
        wait_until_stopped(&ids.concat(), true);
        console.press(b"fg\n");
        wait_until_stopped(&ids.concat(), false);
    }
    fs::write(folder.join("end"), "").unwrap();
    console.press(b"echo ends with $?\n");
    console.wait_for("ends with 0");
    console.press(b"exit\n");
    let end = console.end();
    assert!(end.status.success() && end.is_as_before, "{:?}", end.seen);
}

/// A launcher that is the first process of a terminal, as of `tmux new`, has no shell to continue it; nor has one in a
/// script that is.
#[test]
fn ctrl_z_does_not_stop_a_launcher_that_nobody_could_continue() {
    if let Some(why) = script_is_missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let wrappers =
        [("leads", "exec {}"), ("script", "{}; true"), ("timeout", "timeout --foreground 600 {}")];
    for (name, wrapped) in wrappers {
        let folder = folder(name);
        let script = format!(
            "cd {}; echo on $RANK; while [ ! -e end ]; do sleep 0.05; done",
            folder.display()
        );
        let job = bonfire(&["--nproc=2", "--", "/bin/sh", "-c", &script]);
        // The first of them leads the session of the inner terminal, and its parent is outside.
        let mut terminal = Command::new("script");
        terminal.args(["-qefc", &wrapped.replace("{}", &line(&job, "")), "/dev/null"]);
        let mut console = Console::start(&terminal);
        console.wait_for("on 1\r");
        console.press(b"\x1a");
        // One that stops has done so by then.
        std::thread::sleep(std::time::Duration::from_millis(500));
        std::fs::write(folder.join("end"), "").unwrap();
        console.end();
    }
}

#[test]
fn a_job_that_bg_continues_is_not_stopped_again_by_the_prompt_of_the_shell() {
    if let Some(why) = script_is_missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let folder = folder("bg");
    let script =
        format!("cd {}; echo on $RANK; while [ ! -e end ]; do sleep 0.05; done", folder.display());
    let job = bonfire(&["--nproc=2", "--", "/bin/sh", "-c", &script]);
    let mut console = Console::start(&interactive_shell());
    console.press(line(&job, "\n").as_bytes());
    console.wait_for("on 1\r");
    console.press(b"\x1a");
    console.wait_for("Stopped");
    console.press(b"bg\n");
    // The shell's prompt is in raw mode, for longer than the launcher looks away.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let end = format!("touch {}/end; wait %1; echo ends with $?\n", folder.display());
    console.press(end.as_bytes());
    console.wait_for("ends with 0");
    console.press(b"exit\n");
    console.end();
}

#[test]
fn a_job_that_is_interrupted_while_it_is_stopped_saves_when_it_goes_on() {
    let job = shell(&["--nproc-per-node=2"], SAVES);
    let ranks = job.next_numbers(2);
    job.signal(Signal::TSTP);
    wait_until_stopped(&[&ranks[..], &[job.id()]].concat(), true);
    job.signal(Signal::TERM);
    job.signal(Signal::CONT);
    let end = job.end_with(143);
    assert_eq!(end.stdout.len(), 2, "{:?}", end.stdout);
}

#[test]
fn an_address_of_host_0_that_one_host_does_not_need_is_said_to_be_unused() {
    let end = shell(&["--standalone", "--master-addr=nowhere.invalid"], "true").succeed();
    says(&end, "--master-addr nowhere.invalid is not used: --nnodes is 1");
    let end = shell(&["--master-addr=127.0.0.1"], "true").end();
    assert!(end.stderr.is_empty(), "{:?}", end.stderr);
}

#[test]
fn output_goes_to_files_as_asked() {
    let folder = folder("logs");
    let dir = format!("--log-dir={}", folder.display());
    let script = "echo out $RANK; echo err $RANK >&2";
    let flags = ["--nproc-per-node=2", &dir, "--job-id=j"];
    // Rank 0's output only in the file, rank 1's error stream in both places.
    let flags = [&flags[..], &["-r", "0:1", "-t", "1:2"]].concat();
    let mut end = shell(&flags, script).succeed();
    end.stderr.sort();
    assert_eq!(end.stdout, ["[rank 1] out 1"]);
    assert_eq!(end.stderr, ["[rank 0] err 0", "[rank 1] err 1"]);
    let text = |path: &str| fs::read_to_string(folder.join("j/attempt_0").join(path)).ok();
    assert_eq!(text("0/stdout.log").as_deref(), Some("out 0\n"));
    assert_eq!(text("1/stderr.log").as_deref(), Some("err 1\n"));
    assert_eq!((text("0/stderr.log"), text("1/stdout.log")), (None, None));
}

#[test]
fn the_folder_of_redirected_output_is_said_if_the_user_has_not_named_it() {
    let folder = folder("unnamed-logs");
    let mut command = bonfire(&["-r", "3", "--job-id=j", "--", "/bin/sh", "-c", "echo out"]);
    let end = Job::start(command.env("TMPDIR", &folder)).succeed();
    assert!(end.stdout.is_empty(), "{:?}", end.stdout);
    let said = "the output of the ranks is kept in ";
    let kept = end.stderr[0].strip_prefix(said).unwrap();
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    let text = fs::read_to_string(format!("{kept}/attempt_0/0/stdout.log")).unwrap();
    assert_eq!(text, "out\n");
}

#[test]
fn a_log_folder_alone_keeps_everything_of_every_attempt() {
    let folder = folder("all-logs");
    let dir = folder.display().to_string();
    let script = "echo out $TORCHELASTIC_RESTART_COUNT; echo err >&2; \
                  [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
    let end = shell(&["--log-dir", &dir, "--rdzv-id=j", "--max-restarts=1"], script).succeed();
    assert_eq!(end.stdout, ["out 0", "out 1"]);
    for attempt in 0..2 {
        let of =
            |name: &str| fs::read_to_string(folder.join(format!("j/attempt_{attempt}/0/{name}")));
        assert_eq!(of("stdout.log").unwrap(), format!("out {attempt}\n"));
        assert_eq!(of("stderr.log").unwrap(), "err\n");
    }
}

#[test]
fn flight_records_go_to_the_log_folder_unless_the_user_names_another() {
    let folder = folder("flights");
    let dir = folder.display().to_string();
    let script = "echo $BONFIRE_FLIGHT_DIR";
    let end = shell(&["--log-dir", &dir, "--job-id=j"], script).end();
    assert_eq!(end.stdout, [format!("{dir}/j/attempt_0/flights")]);
    let script =
        "BONFIRE_FLIGHT_DIR=/mine \"$0\" run --log-dir=\"$1\" -- sh -c 'echo $BONFIRE_FLIGHT_DIR'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_bonfire"), &dir]);
    assert_eq!(Job::start(&mut command).end().stdout, ["/mine"]);
    // Without any folder they go to one of a name that nobody else knows, which is made when needed.
    let end = shell(&[], "echo $BONFIRE_FLIGHT_DIR").end();
    let fallback = PathBuf::from(&end.stdout[0]);
    let name = fallback.strip_prefix(std::env::temp_dir()).unwrap();
    assert!(name.to_str().unwrap().starts_with("bonfire-flights-"), "{name:?}");
    assert!(fallback.ends_with("attempt_0") && !fallback.exists());
}

#[test]
fn a_log_folder_that_cannot_be_made_is_one_clear_line() {
    let end = shell(&["--log-dir=/proc/none"], "true").end_with(1);
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    says(&end, "--log-dir");
}

#[test]
fn a_grace_of_its_own_ends_ranks_that_ignore_sigterm() {
    let script = "trap '' TERM; echo id $$; while true; do sleep 1; done";
    let job = shell(&["--nproc=2", "--shutdown-timeout=0"], script);
    let ids = job.next_numbers(2);
    job.signal(Signal::INT);
    job.end_with(130);
    assert_gone(&ids);
}

#[test]
fn node_ranks_count_on() {
    let script =
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_WORLD_SIZE";
    let (_port, jobs) = agents(3, &["--nproc_per_node=2"], script);
    for (node, mut end) in ends(jobs).into_iter().enumerate() {
        assert!(end.status.success(), "{:?}", end.stderr);
        assert!(end.stderr.is_empty(), "{:?}", end.stderr);
        end.stdout.sort();
        let line = |local: usize| {
            let rank = 2 * node + local;
            format!("[rank {rank}] {rank} 6 {local} 2 {node} 3")
        };
        assert_eq!(end.stdout, [line(0), line(1)]);
    }
}

#[test]
fn the_port_of_one_host_may_be_left_to_the_system_in_torchruns_words() {
    for flags in [
        &["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1"][..],
        &["--master-port=0"],
    ] {
        shell(flags, "[ $MASTER_PORT -gt 0 ]").succeed();
    }
}

#[test]
fn a_number_of_ranks_that_is_none_names_its_variable() {
    let mut command = bonfire(&["--", "true"]);
    let end = Job::start(command.env("PET_NPROC_PER_NODE", "4(x2)")).end();
    let line =
        "error: PET_NPROC_PER_NODE is \"4(x2)\": expected a number of ranks, auto, gpu or cpu";
    assert_eq!(end.stderr, [line]);
}

#[test]
fn gpus_of_this_host_are_chosen_by_their_numbers() {
    let end = shell(&["--gpus=2,3"], "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES").end();
    let mut seen = end.stdout;
    seen.sort();
    assert_eq!(seen, ["[rank 0] 0 2,3", "[rank 1] 1 2,3"], "{:?}", end.stderr);
}

/// The launcher of one of two hosts, where this is the name of the first.
fn of_master(name: &str, node: &str) -> Job {
    let flags = ["--nnodes=2", "--master-addr", name, "--master-port=9", "--node-rank", node];
    let mut command = bonfire(&[&flags[..], &["true"]].concat());
    Job::start(command.env("BONFIRE_JOB_TOKEN", "ab".repeat(32)))
}

#[test]
fn a_master_that_is_no_name_is_one_clear_line() {
    for node in ["0", "1"] {
        let end = of_master("gpu[01-03]", node).end_with(1);
        assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
        says(&end, "\"gpu[01-03]\" is neither a name nor an address of a host");
    }
}

/// As on Kubernetes, where the name of a pod is known some seconds after its ranks have started.
#[test]
fn a_name_that_does_not_resolve_yet_is_waited_for_and_the_reason_printed() {
    for node in ["0", "1"] {
        of_master("no.such.host.invalid", node).until_printed("the name does not resolve");
    }
}
