//! Jobs of several hosts: failures, restarts, interrupts and host files.

use std::fs;

use bonfire_testkit::{Job, OwnPort, Signal, assert_gone, wait_until_gone};

use super::{agent, agents, bonfire, ends, folder, says};

#[test]
fn a_failure_on_one_host_ends_all_and_is_named_by_all() {
    let script = "echo id $$; if [ $RANK = 1 ]; then echo no data >&2; exit 5; fi; exec sleep 1000";
    let (_port, jobs) = agents(2, &[], script);
    let ids = jobs[0].next_numbers(1);
    for (node, end) in ends(jobs).into_iter().enumerate() {
        assert_eq!(end.status.code(), Some(5), "node {node}: {:?}", end.stderr);
        says(&end, "root cause: rank 1 (process ");
        says(&end, "exited with code 5");
    }
    assert_gone(&ids);
}

#[test]
fn all_hosts_start_anew_together() {
    let script = "echo attempt $TORCHELASTIC_RESTART_COUNT; \
                  if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; \
                  if [ $RANK = 2 ]; then exit 3; fi; exec sleep 1000";
    let (_port, jobs) = agents(3, &["--max-restarts=1"], script);
    for end in ends(jobs) {
        assert!(end.status.success(), "{:?}", end.stderr);
        assert_eq!(end.stdout, ["attempt 0", "attempt 1"]);
    }
}

#[test]
fn a_killed_launcher_on_one_host_ends_the_others() {
    let (_port, jobs) = agents(2, &[], "echo id $$; exec sleep 1000");
    let ids: Vec<u32> = jobs.iter().flat_map(|job| job.next_numbers(1)).collect();
    // Host 0 serves the store; without it the other host cannot know what became of the job.
    jobs[0].signal(Signal::KILL);
    let end = ends(jobs).pop().unwrap();
    assert!(!end.status.success());
    wait_until_gone(&ids);
}

#[test]
fn a_lost_host_0_ends_the_others_though_restarts_are_left() {
    let folder = folder("lost-host-0");
    let first = folder.join("first");
    // The ranks of the other hosts blame rank 0 when it is gone.
    let script = format!(
        "if [ $RANK = 0 ]; then echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000; fi; \
         while [ ! -e {file} ]; do sleep 0.05; done; echo id $$; \
         while kill -0 $(cat {file}) 2>/dev/null; do sleep 0.05; done; exit 75",
        file = first.display()
    );
    let (_port, mut jobs) = agents(3, &["--max-restarts=2"], &script);
    for job in &jobs[1..] {
        job.next_numbers(1);
    }
    let lost = jobs.remove(0);
    lost.signal(Signal::KILL);
    for end in ends(jobs) {
        assert_eq!(end.status.code(), Some(1), "{:?}", end.stderr);
        says(&end, "node 0 is lost");
        assert!(!end.stderr.join("\n").contains("starting all ranks anew"));
    }
}

#[test]
fn a_killed_launcher_on_another_host_ends_host_0() {
    let (_port, mut jobs) = agents(2, &["--max-restarts=2"], "echo id $$; exec sleep 1000");
    let ids: Vec<u32> = jobs.iter().flat_map(|job| job.next_numbers(1)).collect();
    jobs.remove(1).signal(Signal::KILL);
    let end = jobs.remove(0).end_with(1);
    says(&end, "node 1 is lost");
    wait_until_gone(&ids);
}

#[test]
fn an_interrupt_after_a_failure_on_one_host_ends_the_job_on_all() {
    let folder = folder("interrupted-after-a-failure");
    let folder = folder.display();
    // Rank 3 fails when it may, and rank 2, on the same host, ends when it may.
    let script = format!(
        "trap ': > {folder}/stopping-$RANK; while [ ! -e {folder}/end ]; do sleep 0.05; done; exit 0' TERM; echo id $$; \
         while true; do sleep 0.05; if [ $RANK = 3 ] && [ -e {folder}/fail ]; then exit 3; fi; done"
    );
    let flags = ["--nproc=2", "--max-restarts=3", "--shutdown-timeout=100"];
    let (_port, jobs) = agents(2, &flags, &script);
    for job in &jobs {
        job.next_numbers(2);
    }
    fs::write(format!("{folder}/fail"), "").unwrap();
    // The launcher knows of the failure when it stops the other rank.
    while !fs::exists(format!("{folder}/stopping-2")).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    jobs[1].signal(Signal::INT);
    fs::write(format!("{folder}/end"), "").unwrap();
    for end in ends(jobs) {
        assert_eq!(end.status.code(), Some(3), "{:?}", end.stderr);
        assert!(!end.stderr.join("\n").contains("starting all ranks anew"));
    }
}

#[test]
fn agents_that_still_meet_end_at_once_when_they_are_asked_to() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let port = OwnPort::new();
        let job = Job::start(&mut agent((1, 2), &port, &[], "true"));
        job.until_told("waiting for the store");
        job.signal(signal);
        let end = job.end_with(code);
        says(&end, "interrupted by SIG");
    }
}

/// Starts a job of two hosts from a hostfile, both of which are this one, and so need no ssh.
fn of_hostfile(name: &str, flags: &[&str], script: &str) -> (OwnPort, Job) {
    let (port, file) = (OwnPort::new(), folder(name).join("hosts"));
    fs::write(&file, "localhost slots=2 # the first\n127.0.0.1 slots=2\n").unwrap();
    let (file, port_text) = (file.display().to_string(), port.to_string());
    let place = ["--hostfile", &file, "--master_port", &port_text];
    let script = ["--", "/bin/sh", "-c", script];
    let mut command = bonfire(&[&place[..], flags, &script[..]].concat());
    let job = Job::start(command.env("BONFIRE_TEST_OF_THIS_JOB", "it's here"));
    (port, job)
}

#[test]
fn a_hostfile_starts_a_launcher_for_each_host() {
    let script = "echo $RANK $WORLD_SIZE $NODE_RANK $BONFIRE_TEST_OF_THIS_JOB; \
                  awk 'index($0, ENVIRON[\"BONFIRE_JOB_TOKEN\"]) { print FILENAME }' \
                  /proc/[0-9]*/cmdline 2>/dev/null; true";
    let (_port, job) = of_hostfile("hostfile", &["--num_gpus=1"], script);
    let mut end = job.succeed();
    end.stdout.sort();
    let lines = ["[127.0.0.1] 1 2 1 it's here", "[localhost] 0 2 0 it's here"];
    assert_eq!(end.stdout, lines);
}

#[test]
fn ranks_of_a_hostfile_save_when_the_job_is_interrupted_and_when_its_command_is_killed() {
    for signal in [Signal::INT, Signal::KILL] {
        let folder = folder("saved");
        let script = format!(
            "trap 'echo > {}/$RANK; exit 0' TERM; echo id $$; while true; do sleep 0.05; done",
            folder.display()
        );
        let (_port, job) = of_hostfile("hostfile-interrupted", &[], &script);
        let ids = job.next_numbers(4);
        job.signal(signal);
        let end = job.end();
        assert!(!end.status.success(), "{:?}", end.stderr);
        wait_until_gone(&ids);
        let saved = fs::read_dir(&folder).unwrap().count();
        assert!(signal == Signal::KILL || saved == 4, "{saved} ranks saved");
    }
}

#[test]
fn a_failure_on_a_host_of_a_hostfile_ends_the_others() {
    let script = "echo id $$; if [ $RANK = 2 ]; then exit 5; fi; exec sleep 1000";
    let (_port, job) = of_hostfile("hostfile-failure", &[], script);
    let ids = job.next_numbers(4);
    let end = job.end_with(5);
    says(&end, "root cause: rank 2");
    assert_gone(&ids);
}

#[test]
fn hosts_that_were_started_differently_say_so() {
    let (port, token) = (OwnPort::new(), "ab".repeat(32));
    let start = |node: &str, nproc: &str| {
        let flags = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port", &port.to_string()];
        let flags = [&flags[..], &["--node-rank", node, "--nproc", nproc, "true"]].concat();
        Job::start(bonfire(&flags).env("BONFIRE_JOB_TOKEN", &token))
    };
    let jobs = vec![start("0", "1"), start("1", "2")];
    for (node, end) in ends(jobs).into_iter().enumerate() {
        assert_eq!(end.status.code(), Some(1));
        assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
        // Whichever hears of it first may be gone before the other has asked.
        if node == 0 {
            says(&end, "--nproc-per-node 1, but node 1 has 2: make them equal");
        }
    }
}

#[test]
fn one_node_rank_twice_is_one_clear_line() {
    drop(agents(2, &[], "true"));
    let (port, token) = (OwnPort::new(), "ab".repeat(32));
    let start = |node: &str| {
        let flags = ["--nnodes=3", "--master-addr=127.0.0.1", "--master-port", &port.to_string()];
        let flags = [&flags[..], &["--node-rank", node, "true"]].concat();
        Job::start(bonfire(&flags).env("BONFIRE_JOB_TOKEN", &token))
    };
    let _first = start("0");
    let twins = [start("1"), start("1")];
    // One of the two waits for node 2, which never comes; the other is told at once.
    let refused = loop {
        if let Some(refused) = twins.iter().position(|twin| !bonfire_testkit::is_running(twin.id()))
        {
            break refused;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let end = twins.into_iter().nth(refused).unwrap().end_with(1);
    assert_eq!(end.stderr.len(), 1, "{:?}", end.stderr);
    says(&end, "there is another node 1 in this job");
}
