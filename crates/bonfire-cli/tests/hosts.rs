//! `bonfire run` on several hosts, which are network namespaces, and on hosts that lack something.
//! Without root, `ip` or `unshare`, the tests say so and do nothing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::Path;
use std::process::Command;

use bonfire_testkit::{Job, Network, Shape, Signal, assert_each_says, wait_until_gone};

const BONFIRE: &str = env!("CARGO_BIN_EXE_bonfire");

const SMALL: [&str; 6] =
    ["bench", "all-reduce", "--min-bytes=64", "--max-bytes=4K", "--rotate-bytes=16K", "--warmup=1"];

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
fn launchers_of_three_hosts_start_one_job_with_and_without_tls() {
    check_three_hosts("three hosts", &[]);
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
    assert_each_says([said], &["uses no TLS, the other TLS", "the same --tls or BONFIRE_TLS"]);
}

fn check_three_hosts(name: &str, flags: &[&str]) {
    let Some(network) = network(name, 3) else {
        return;
    };
    let program = [&[BONFIRE][..], &SMALL, &["--iters=3"]].concat();
    let jobs = launchers(&network, 3, &[&["--nproc-per-node=2"], flags].concat(), &program);
    for (host, end) in jobs.into_iter().map(Job::end).enumerate() {
        assert!(end.status.success(), "host {host}: {:?}", end.stderr);
        // Rank 0 prints the table, whose rows begin with the size.
        let rows = end.stdout.iter().filter(|line| line.contains("4096")).count();
        assert_eq!(rows > 0, host == 0, "host {host}: {:?}", end.stdout);
        let mixed = end.stdout.iter().any(|line| line.contains("over shm and tcp"));
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
fn the_last_line_after_a_cut_cable_names_the_host_that_is_lost() {
    let Some(network) = network("a cut cable", 2) else {
        return;
    };
    let program =
        [&["/bin/sh", "-c", "echo id $$; exec \"$0\" \"$@\"", BONFIRE][..], &SMALL].concat();
    let program = [&program[..], &["--iters=100000000"]].concat();
    let jobs = launchers(&network, 2, &[], &program);
    let ids: Vec<u32> = jobs.iter().flat_map(|job| job.next_numbers(1)).collect();
    // Both have begun: rank 0 prints the head of its table when they have met.
    jobs[0].next_line();
    network.cut(1);
    for (host, end) in jobs.into_iter().map(Job::end).enumerate() {
        let last = end.stderr.last().unwrap();
        let expected = format!("error: node {} is lost: its launcher no longer answers", 1 - host);
        assert_eq!(*last, expected, "host {host}: {:?}", end.stderr);
    }
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
        names.filter(|name| name.to_string_lossy().contains("bonfire")).collect()
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
    let probe =
        Command::new("unshare").args(["--mount", "/bin/sh", "-c", script, "sh", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a small /dev/shm needs root and unshare");
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "/bin/sh", "-c", script, "sh", BONFIRE])
        .args(["bench", "all-reduce", "--min-bytes=8M", "--max-bytes=8M"])
        .args(["--iters=2", "--warmup=1", "--rotate-bytes=16M", "--ranks=2"]);
    Job::start(&mut command).succeed();
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
    command.args(["run", "--", "/bin/sh", "-c", script]).env("BONFIRE_JOB_TOKEN_FILE", &path);
    let end = Job::start(&mut command).succeed();
    assert_eq!(end.stdout[0], token);
    let lines = end.stdout[1..].join("\n");
    assert!(lines.contains("run"), "{lines}");
    assert!(!lines.contains(&token), "{lines}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let end = Job::start(&mut command).end_with(1);
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    assert!(end.stderr[0].contains("chmod 600"), "{:?}", end.stderr);
}

/// Servers of ssh, one on each host, which let the key in of whoever runs this test; nothing, and the reason, where
/// there can be none.
fn ssh_servers(network: &Network, folder: &Path) -> Option<Vec<Job>> {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    let file = |name: &str| folder.join(name).display().to_string();
    let server = Path::new("/usr/sbin/sshd");
    let keys = ["key", "host"]
        .map(|name| run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file(name)]));
    if keys != [true; 2] || !server.exists() {
        eprintln!("skipped: hosts over ssh need openssh-server and openssh-client");
        return None;
    }
    // Where the server looks for a folder without asking.
    std::fs::create_dir_all("/run/sshd").unwrap();
    let start = |host: usize| {
        let mut command = network.command(host, server);
        command.args(["-D", "-e", "-f", "/dev/null", "-p", "2222", "-h", &file("host")]);
        for option in
            [&format!("AuthorizedKeysFile={}", file("key.pub")), "StrictModes=no", "PidFile=none"]
        {
            command.args(["-o", option]);
        }
        let job = Job::start(&mut command);
        job.until_told("Server listening");
        job
    };
    Some((0..2).map(start).collect())
}

#[test]
fn a_hostfile_starts_its_hosts_over_ssh_and_ends_them() {
    let Some(network) = network("hosts over ssh", 2) else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ssh");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let Some(_servers) = ssh_servers(&network, &folder) else {
        return;
    };
    let hosts = folder.join("hosts");
    let addresses = [network.address(0), network.address(1)];
    let lines = addresses.each_ref().map(|address| format!("{address} slots=2\n"));
    std::fs::write(&hosts, lines.concat()).unwrap();
    let arguments = format!(
        "-p 2222 -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        folder.join("key").display()
    );
    let start = |program: &[&str]| {
        let mut command = network.command(0, Path::new(BONFIRE));
        command.args(["run", "--hostfile"]).arg(&hosts);
        command.args(["--launcher_args", &arguments, "--"]).args(program);
        Job::start(&mut command)
    };
    let end = start(&[&[BONFIRE][..], &SMALL, &["--iters=3"]].concat()).succeed();
    let mixed = end.stdout.iter().any(|line| line.contains("over shm and tcp"));
    assert!(mixed, "{:?}", end.stdout);
    // Interrupted, the ranks of both hosts save.
    let script = "trap 'echo saved; exit 0' TERM; echo id $$; while true; do sleep 0.05; done";
    let job = start(&["/bin/sh", "-c", script]);
    let ids = job.next_numbers(4);
    job.signal(Signal::TERM);
    let end = job.end_with(143);
    let saved = end.stdout.iter().filter(|line| line.ends_with("saved")).count();
    assert_eq!(saved, 4, "{:?}", end.stdout);
    wait_until_gone(&ids);
    // Its command killed, nothing is left on either host.
    let job = start(&["/bin/sh", "-c", script]);
    let ids = job.next_numbers(4);
    job.signal(Signal::KILL);
    wait_until_gone(&ids);
}

#[test]
fn the_first_process_of_a_container_ends_when_it_is_asked_to_while_hosts_meet() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", BONFIRE, "run", "--nnodes=2", "--node-rank=1"]);
    // Nobody is there.
    command.args(["--master-addr=127.0.0.1", "--master-port=1", "--", "true"]);
    command.env("BONFIRE_JOB_TOKEN", "ab".repeat(32));
    let probe = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a process namespace needs root and unshare");
        return;
    }
    let job = Job::start(&mut command);
    job.until_told("waiting for the store");
    let children = format!("/proc/{id}/task/{id}/children", id = job.id());
    let first = std::fs::read_to_string(children).unwrap();
    bonfire_testkit::signal_process(first.trim().parse().unwrap(), Signal::TERM);
    job.end_with(143);
}
