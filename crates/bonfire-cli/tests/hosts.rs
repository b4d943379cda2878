//! `bonfire run` on several hosts, which are network namespaces, and on hosts that lack something.
//! Without root, `ip` or `unshare`, the tests say so and do nothing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;
use std::process::Command;

use bonfire_testkit::{Job, Network, Shape, Signal, wait_until_gone};

const BONFIRE: &str = env!("CARGO_BIN_EXE_bonfire");

const SMALL: [&str; 6] = [
    "bench",
    "all-reduce",
    "--min-bytes=64",
    "--max-bytes=4K",
    "--rotate-bytes=16K",
    "--warmup=1",
];

fn network(name: &str, hosts: usize) -> Option<Network> {
    match Network::new(hosts, Shape::Plain) {
        Ok(network) => Some(network),
        Err(reason) => {
            eprintln!("skipped: {name} needs network namespaces (root and iproute2): {reason}");
            None
        }
    }
}

/// The command on one of `nnodes` hosts, as a user gives it.
fn launcher(
    network: &Network,
    (host, nnodes): (usize, usize),
    flags: &[&str],
    program: &[&str],
) -> Job {
    let mut command = network.command(host, Path::new(BONFIRE));
    command
        .args(["run", "--master-port=29500"])
        .args(["--master-addr", &network.address(0)])
        .args(["--nnodes", &nnodes.to_string()])
        .args(["--node-rank", &host.to_string()])
        .args(flags)
        .arg("--")
        .args(program)
        .env("BONFIRE_JOB_TOKEN", "ab".repeat(32));
    Job::start(&mut command)
}

/// The same command on each host.
fn launchers(network: &Network, nnodes: usize, flags: &[&str], program: &[&str]) -> Vec<Job> {
    let start = |host| launcher(network, (host, nnodes), flags, program);
    (0..nnodes).map(start).collect()
}

#[test]
fn launchers_of_three_hosts_start_one_job() {
    check_three_hosts("three hosts", &[]);
}

#[test]
fn launchers_of_three_hosts_start_one_job_over_tls() {
    check_three_hosts("three hosts with TLS", &["--tls", "hosts"]);
}

#[test]
fn a_launcher_without_the_tls_of_host_0_is_told_so() {
    let Some(network) = network("hosts that differ in TLS", 2) else {
        return;
    };
    let start = |host, tls| launcher(&network, (host, 2), &["--tls", tls], &["/bin/true"]);
    let _waits_for_the_other = start(0, "all");
    let end = start(1, "off").end();
    let said = end.stderr.join("\n");
    assert!(!end.status.success(), "{said}");
    assert!(said.contains("uses no TLS, the other TLS"), "{said}");
    assert!(said.contains("the same --tls or BONFIRE_TLS"), "{said}");
}

fn check_three_hosts(name: &str, flags: &[&str]) {
    let Some(network) = network(name, 3) else {
        return;
    };
    let program = [&[BONFIRE][..], &SMALL, &["--iters=3"]].concat();
    let jobs = launchers(
        &network,
        3,
        &[&["--nproc-per-node=2"], flags].concat(),
        &program,
    );
    for (host, end) in jobs.into_iter().map(Job::end).enumerate() {
        assert!(end.status.success(), "host {host}: {:?}", end.stderr);
        // Rank 0 prints the table, whose rows begin with the size.
        let rows = end
            .stdout
            .iter()
            .filter(|line| line.contains("4096"))
            .count();
        assert_eq!(rows > 0, host == 0, "host {host}: {:?}", end.stdout);
        let mixed = end
            .stdout
            .iter()
            .any(|line| line.contains("over shm and tcp"));
        assert_eq!(mixed, host == 0, "host {host}: {:?}", end.stdout);
    }
}

#[test]
fn a_host_that_is_lost_ends_the_job_on_the_others() {
    let Some(network) = network("a lost host", 2) else {
        return;
    };
    let program = ["/bin/sh", "-c", "echo id $$; exec sleep 1000"];
    let jobs = launchers(&network, 2, &["--max-restarts=5"], &program);
    let ids: Vec<u32> = jobs.iter().flat_map(|job| job.next_numbers(1)).collect();
    network.kill(0);
    let end = jobs.into_iter().nth(1).unwrap().end();
    assert!(!end.status.success());
    let said = end.stderr.join("\n");
    assert!(said.contains("node 0 is lost"), "{said}");
    wait_until_gone(&ids);
}

#[test]
fn a_killed_job_leaves_no_shared_memory_and_no_socket() {
    let Some(network) = network("a killed job", 1) else {
        return;
    };
    let names = || -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().contains("bonfire"))
            .collect()
    };
    let mut command = network.command(0, Path::new(BONFIRE));
    command
        .args(["run", "--nproc-per-node=3", "--", "/bin/sh", "-c"])
        .args(["echo id $$; exec \"$0\" \"$@\"", BONFIRE])
        .args(SMALL)
        .arg("--iters=100000000");
    let job = Job::start(&mut command);
    let ids = job.next_numbers(3);
    let sockets = || {
        let mut command = network.command(0, Path::new("/bin/cat"));
        let output = command.arg("/proc/net/unix").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    // The ranks meet: their sockets are there, whose names begin so.
    while !sockets().iter().any(|line| line.contains("@bonfire-")) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
    drop(job);
    // Sockets go with their processes, which are gone when nothing waits for them any more.
    while !sockets().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(names(), Vec::<std::ffi::OsString>::new());
}

#[test]
fn a_small_dev_shm_is_no_trouble() {
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
    let probe = Command::new("unshare")
        .args(["--mount", "/bin/sh", "-c", script, "sh", "true"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a small /dev/shm needs root and unshare");
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "/bin/sh", "-c", script, "sh", BONFIRE])
        .args(["bench", "all-reduce", "--min-bytes=8M", "--max-bytes=8M"])
        .args(["--iters=2", "--warmup=1", "--rotate-bytes=16M", "--ranks=2"]);
    let end = Job::start(&mut command).end();
    assert!(end.status.success(), "{:?}", end.stderr);
}

#[test]
fn the_token_is_on_no_command_line_and_can_come_from_a_file() {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("token");
    let token = "5a".repeat(32);
    fs::write(&path, &token).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let script = "echo $BONFIRE_JOB_TOKEN; cat /proc/$PPID/cmdline /proc/$$/cmdline | tr '\\0' ' '";
    let mut command = Command::new(BONFIRE);
    command
        .args(["run", "--", "/bin/sh", "-c", script])
        .env("BONFIRE_JOB_TOKEN_FILE", &path);
    let end = Job::start(&mut command).end();
    assert!(end.status.success(), "{:?}", end.stderr);
    assert_eq!(end.stdout[0], token);
    let lines = end.stdout[1..].join("\n");
    assert!(lines.contains("run"), "{lines}");
    assert!(!lines.contains(&token), "{lines}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let end = Job::start(&mut command).end();
    assert_eq!(end.status.code(), Some(1));
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    assert!(end.stderr[0].contains("chmod 600"), "{:?}", end.stderr);
}
