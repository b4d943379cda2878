//! `bonfire inspect JOB` and SIGUSR1, as a user uses them while a job runs.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp, read_flight_records};
use bonfire_launch::rank_from_env;
use bonfire_testkit::{
    Job, JobEnd, Network, Shape, Signal, Watchdog, assert_each_says, signal_process,
};
use serde_json::Value;

const BONFIRE: &str = env!("CARGO_BIN_EXE_bonfire");

/// Makes this test program a rank of the jobs below; names the file whose appearance ends the job.
const END_FILE: &str = "BONFIRE_TEST_END_FILE";

const LIMIT: Duration = Duration::from_secs(100);

/// A user that is nobody else.
const NOBODY: u32 = 65_534;

/// What the ranks run, which start this test program for this test alone: the last rank loads data for
/// as long as the test wants, and the others wait for it.
#[test]
fn a_rank_of_the_jobs_below() {
    let Some(end_file) = env::var_os(END_FILE).map(PathBuf::from) else {
        return;
    };
    let _watchdog = Watchdog::start("a rank", LIMIT);
    let group = ProcessGroup::connect(&rank_from_env().unwrap(), GroupOptions::default()).unwrap();
    group.progress(7);
    group.named("layers.7.weight").all_reduce(&mut [1.0_f32; 3000], ReduceOp::Sum).unwrap();
    if group.rank().get() + 1 == group.world_size().get() {
        group.phase("data loading");
        println!("loading in process {}", std::process::id());
        while !end_file.exists() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    group.barrier().unwrap();
    println!("ended well");
}

/// A job of three ranks that waits for its last one.
struct Waiting {
    job: Job,
    folder: tempfile::TempDir,
    last_rank: u32,
}

impl Waiting {
    fn start(command: &mut Command, program: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let this = env::current_exe().unwrap();
        let job = Job::start(
            command
                .arg("--")
                .args(program)
                .arg(this)
                .args(["a_rank_of_the_jobs_below", "--exact", "--nocapture"])
                .env(END_FILE, folder.path().join("end"))
                .env("BONFIRE_FLIGHT_DIR", folder.path().join("flights")),
        );
        let last_rank = loading(&job);
        Self { job, folder, last_rank }
    }

    fn run(name: &str, program: &[&str]) -> Self {
        let mut command = Command::new(BONFIRE);
        command.args(["run", "--nproc-per-node=3", "--rdzv-id", name]);
        Self::start(&mut command, program)
    }

    /// The job goes on and ends well.
    fn end(self) -> JobEnd {
        self.let_go();
        let Self { job, folder, .. } = self;
        let end = job.succeed();
        let well = end.stdout.iter().filter(|line| line.ends_with("ended well"));
        assert_eq!(well.count(), 3, "{:?}", end.stdout);
        drop(folder);
        end
    }

    fn let_go(&self) {
        fs::write(self.folder.path().join("end"), "").unwrap();
    }

    fn flights(&self) -> PathBuf {
        self.folder.path().join("flights")
    }
}

/// Waits for the process that loads data.
fn loading(job: &Job) -> u32 {
    loop {
        let line = job.next_line();
        if let Some((_, id)) = line.rsplit_once("loading in process ") {
            return id.parse().unwrap();
        }
    }
}

fn inspect(arguments: &[&str]) -> JobEnd {
    Job::start(Command::new(BONFIRE).arg("inspect").args(arguments)).end()
}

/// Asks until the answer says this: nobody waits for long at first.
#[track_caller]
fn inspect_until(mut command: impl FnMut() -> Command, said: &str) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let end = Job::start(&mut command()).end();
        if end.stdout.join("\n").contains(said) {
            return end.stdout;
        }
        assert!(Instant::now() < deadline, "nobody says {said:?}: {end:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// `bonfire inspect`, to be run in vain a few times.
fn ask(name: &str) -> impl FnMut() -> Command {
    let name = name.to_owned();
    move || {
        let mut command = Command::new(BONFIRE);
        command.args(["inspect", &name]);
        command
    }
}

#[test]
fn a_job_that_waits_says_for_whom_and_goes_on() {
    let name = format!("waits-{}", std::process::id());
    let waiting = Waiting::run(&name, &[]);
    let lines = inspect_until(ask(&name), "has not entered it");
    let [verdict, _, rank_0, rank_1, rank_2] = &lines[..] else {
        panic!("five lines, got {lines:?}");
    };
    let parts = [
        "Group 0 of 3 ranks, running: ranks 0 and 1 wait in barrier #1",
        "rank 2 has not entered it: its last call, all_reduce #0",
        "(layers.7.weight), ended ",
        "busy with something else since (step 7 for ",
        "\"data loading\" for ",
    ];
    assert_each_says([verdict], &parts);
    assert_each_says([rank_0, rank_1], &["in it for ", "barrier #1"]);
    assert_each_says([rank_2], &[" s ago  all_reduce #0", "\"data loading\""]);

    // The same job by its launcher and by one of its ranks, with all operations.
    let trace = waiting.folder.path().join("trace.json");
    let launcher = waiting.job.id().to_string();
    let end = inspect(&[&launcher, "--json", "--trace", trace.to_str().unwrap()]).with_code(0);
    let records: Value = serde_json::from_str(&end.stdout.join("\n")).unwrap();
    assert_eq!(records[0]["operations"].as_array().unwrap().len(), 2);
    assert_eq!(records[2]["operations"][0]["name"], "layers.7.weight");
    assert_eq!(records[2]["failure"], Value::Null);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let pending = events.iter().filter(|event| event["cat"] == "pending");
    assert_eq!(pending.count(), 2, "{events:?}");
    let end = inspect(&[&waiting.last_rank.to_string()]);
    assert!(end.stdout[0].starts_with("Group 0 of 3 ranks, running"), "{:?}", end.stdout);

    let end = inspect(&[]);
    let listed = end.stdout.iter().find(|line| line.contains(&name)).unwrap();
    assert!(listed.contains(&launcher) && listed.contains("3 of 3"), "{listed}");
    waiting.end();
    let end = inspect(&[&name]).with_code(1);
    assert!(end.stderr[0].contains("no job") && end.stderr.len() == 1, "{:?}", end.stderr);
}

#[test]
fn a_stopped_rank_is_named_and_the_others_answer() {
    let name = format!("stopped-{}", std::process::id());
    let waiting = Waiting::run(&name, &[]);
    signal_process(waiting.last_rank, Signal::STOP);
    let lines = inspect_until(ask(&name), "rank 2 gives no account of itself");
    signal_process(waiting.last_rank, Signal::CONT);
    let last = lines.last().unwrap();
    assert!(last.starts_with("No word from rank 2: its process is stopped"), "{lines:?}");
    waiting.end();
}

#[test]
fn sigusr1_of_one_rank_tells_what_all_ranks_do() {
    let name = format!("signal-{}", std::process::id());
    let waiting = Waiting::run(&name, &[]);
    // The others wait for long enough to be said to.
    inspect_until(ask(&name), "has not entered it");
    signal_process(waiting.last_rank, Signal::USR1);
    let deadline = Instant::now() + LIMIT;
    let records = loop {
        match read_flight_records(&waiting.flights()) {
            Ok(records) if !records.is_empty() => break records,
            _ => assert!(Instant::now() < deadline, "no record comes"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].rank.get(), &records[0].failure), (2, &None));
    let folder = waiting.flights();
    let end = inspect(&[folder.to_str().unwrap()]);
    assert!(end.stdout[0].contains("running"), "{:?}", end.stdout);
    let end = waiting.end();
    // The whole job, as whoever inspects it is told.
    let parts = [
        "Group 0 of 3 ranks, running: ",
        "rank 2 has not entered it: its last call, all_reduce #0",
        "\"data loading\"",
        "Flight record of rank 2: ",
    ];
    assert_each_says([end.stderr.join("\n")], &parts);
    for rank in 0..2 {
        let line = |line: &&String| line.contains("in it for ") && line.contains("barrier #1");
        let row = end.stderr.iter().filter(line).nth(rank);
        assert!(row.is_some(), "no row of rank {rank}: {:?}", end.stderr);
    }
}

/// The lines of the launcher between its heading and its verdict.
fn told_of_ranks(end: &JobEnd) -> &[String] {
    let heading = "what the ranks did when the job failed:";
    let lines = &end.stderr[..];
    let from = lines.iter().position(|line| line == heading);
    let to = lines.iter().position(|line| line.starts_with("error: root cause: rank "));
    match (from, to) {
        (Some(from), Some(to)) if from < to => &lines[from + 1..to],
        _ => panic!("nobody tells of the ranks: {lines:?}"),
    }
}

/// What the launchers say after a rank was killed that all others waited for.
#[track_caller]
fn says_who_was_killed(told: &[String], waiting: &str, killed: &str) {
    let [failure, waited, gone, more] = told else {
        panic!("four lines, got {told:?}");
    };
    assert!(failure.contains(&format!("{killed} failed: its process ended")), "{failure}");
    let prefix = format!("  {waiting} in barrier #1 ");
    assert!(waited.starts_with(&prefix), "{waited}");
    assert_eq!(gone, &format!("  {killed} left no record: ended, stopped or out of reach"));
    assert!(more.starts_with("  their last operations: bonfire inspect "), "{more}");
}

#[test]
fn a_failed_job_ends_with_what_all_ranks_did_and_the_culprit() {
    let waiting = Waiting::run(&format!("fails-{}", std::process::id()), &[]);
    inspect_until(ask(&waiting.last_rank.to_string()), "ranks 0 and 1 wait in barrier #1");
    signal_process(waiting.last_rank, Signal::KILL);
    let folder = waiting.flights();
    let Waiting { job, folder: _kept, .. } = waiting;
    let end = job.end();
    assert!(!end.status.success());
    let told = told_of_ranks(&end);
    says_who_was_killed(told, "ranks 0 and 1 were", "rank 2");
    let (_, named) = told[3].rsplit_once(' ').unwrap();
    assert_eq!(Path::new(named), folder);
    let end = inspect(&[named]);
    assert!(end.stdout[0].starts_with("Group 0 of 3 ranks: rank 2 failed"), "{:?}", end.stdout);
}

#[test]
fn a_program_that_has_sigusr1_for_itself_keeps_it() {
    let name = format!("own-signal-{}", std::process::id());
    let script = "trap '' USR1; exec \"$@\"";
    let waiting = Waiting::run(&name, &["sh", "-c", script, "sh"]);
    signal_process(waiting.last_rank, Signal::USR1);
    // It would be served before the question that comes later.
    inspect(&[&name]).with_code(0);
    assert!(!waiting.flights().exists());
    let end = waiting.end();
    assert!(!end.stderr.iter().any(|line| line.contains("Group 0")), "{:?}", end.stderr);
}

/// Names the socket of a rank for the test below, which another user runs.
const SOCKET: &str = "BONFIRE_TEST_SOCKET";

/// What this test program does for the test below, as whoever runs it: asks a rank who it is.
#[test]
fn a_question_to_the_socket_of_a_rank() {
    let Ok(name) = env::var(SOCKET) else { return };
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    // To be hung up on at any moment is an answer of no bytes.
    let asked = stream.write_all(b"\"Who\"");
    let asked = asked.and_then(|()| stream.shutdown(Shutdown::Write));
    let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    println!("answered in {} bytes", answer.len());
}

#[test]
fn another_user_is_told_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user for once");
        return;
    }
    let waiting = Waiting::run(&format!("strangers-{}", std::process::id()), &[]);
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let of_rank = format!("-2-{}-", waiting.last_rank);
    let names = sockets.lines().filter_map(|line| line.rsplit('@').next());
    let mut of_rank =
        names.filter(|name| name.starts_with("bonfire-ask-") && name.contains(&of_rank));
    let name = of_rank.next().unwrap().to_owned();
    // Where another user can reach it.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("asks");
    // If this process wrote it, a child of another test could keep it open for writing: ETXTBSY.
    let mut copy = Command::new("cp");
    copy.arg(env::current_exe().unwrap()).arg(&program);
    assert!(copy.status().unwrap().success());
    for path in [folder.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let ask_as = |user: u32| {
        let mut command = Command::new(&program);
        command
            .args(["a_question_to_the_socket_of_a_rank", "--exact", "--nocapture"])
            .current_dir("/")
            .env(SOCKET, &name)
            .uid(user);
        let end = Job::start(&mut command).end();
        let line = end.stdout.iter().find(|line| line.contains("answered in"));
        line.unwrap_or_else(|| panic!("{:?}", end.stderr)).clone()
    };
    assert!(!ask_as(0).contains(" 0 bytes"), "its own user is answered");
    assert!(ask_as(NOBODY).ends_with("answered in 0 bytes"));
    waiting.end();
}

/// Two hosts with a rank each, of which rank 0 waits for the other, and the process of that one.
fn start_on_two_hosts(network: &Network, folder: &Path) -> (Vec<Job>, u32) {
    let start = |host: usize| {
        let mut command = network.command(host, Path::new(BONFIRE));
        command
            .args(["run", "--nnodes=2", "--master-port=29500", "--node-rank"])
            .args([&host.to_string(), "--master-addr", &network.address(0), "--"])
            .arg(env::current_exe().unwrap())
            .args(["a_rank_of_the_jobs_below", "--exact", "--nocapture"])
            .env("BONFIRE_JOB_TOKEN", "ab".repeat(32))
            .env("BONFIRE_FLIGHT_DIR", folder.join(host.to_string()))
            .env(END_FILE, folder.join("end"));
        Job::start(&mut command)
    };
    let jobs: Vec<Job> = (0..2).map(start).collect();
    let last_rank = loading(&jobs[1]);
    let launcher = jobs[0].id().to_string();
    let command = || {
        let mut command = network.command(0, Path::new(BONFIRE));
        command.args(["inspect", &launcher]);
        command
    };
    let lines = inspect_until(command, "rank 1 has not entered it");
    assert!(lines[0].contains("running: rank 0 waits in barrier #1"), "{lines:?}");
    (jobs, last_rank)
}

fn two_hosts() -> Option<Network> {
    match Network::new(2, Shape::Plain) {
        Ok(network) => Some(network),
        Err(reason) => {
            eprintln!("skipped: two hosts need network namespaces (root and iproute2): {reason}");
            None
        }
    }
}

#[test]
fn one_host_tells_of_all_hosts() {
    let Some(network) = two_hosts() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (jobs, _) = start_on_two_hosts(&network, folder.path());
    fs::write(folder.path().join("end"), "").unwrap();
    for job in jobs {
        job.succeed();
    }
}

#[test]
fn the_launchers_of_all_hosts_tell_of_the_ranks_of_all_hosts() {
    let Some(network) = two_hosts() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (jobs, last_rank) = start_on_two_hosts(&network, folder.path());
    signal_process(last_rank, Signal::KILL);
    for (host, job) in jobs.into_iter().enumerate() {
        let end = job.end();
        assert!(!end.status.success(), "host {host}: {:?}", end.stderr);
        says_who_was_killed(told_of_ranks(&end), "rank 0 was", "rank 1");
    }
    assert!(!folder.path().join("1").exists(), "the killed rank's host");
}
