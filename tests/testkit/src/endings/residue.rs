//! What a job has, and what it leaves behind: its processes, its sockets, its shared memory.
//!
//! Processes are known by a mark in the environment, which everything that a job starts inherits.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::is_running;

pub(super) const MARK: &str = "BONFIRE_TEST_MARK";

const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// One job among all processes of the machine.
#[derive(Debug)]
pub(super) struct Residue {
    mark: String,
    sockets: BTreeSet<u64>,
}

impl Residue {
    /// A job that no other is.
    pub(super) fn new() -> Self {
        static JOBS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number itself matters.
        let job = JOBS.fetch_add(1, Ordering::Relaxed);
        Self { mark: format!("{}-{job}", std::process::id()), sockets: BTreeSet::new() }
    }

    /// What the command of the job must have in its environment.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    pub(super) fn note_sockets(&mut self) {
        for pid in self.processes() {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            let links = entries.flatten().map(|entry| fs::read_link(entry.path()));
            let inode = |link: &Path| -> Option<u64> {
                let name = link.to_str()?.strip_prefix("socket:[")?;
                name.strip_suffix(']')?.parse().ok()
            };
            self.sockets.extend(links.flatten().filter_map(|link| inode(&link)));
        }
    }

    /// How many sockets have been noted.
    pub(super) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        let wanted = format!("{MARK}={}", self.mark);
        let is_ours = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(is_ours).filter(|pid| is_running(*pid)).collect()
    }

    /// Waits until the job has no process and no socket; what it has in the end.
    ///
    /// The sockets of a killed process are the last to go: its memory, and its mark with it, goes before.
    pub(super) fn wait_for_the_last(&self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            let (processes, sockets) = (self.processes(), self.open_sockets());
            if processes.is_empty() && sockets.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "processes {processes:?} and sockets {sockets:?} outlive the job"
                ));
            }
            thread::sleep(LOOK_PAUSE);
        }
    }

    /// Kills what is left, so that one failed judgement does not spoil the next.
    pub(super) fn clear(&self) {
        for pid in self.processes() {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// The sockets of the job that are still there, though its processes are not.
    fn open_sockets(&self) -> Vec<u64> {
        // The inode is the 7th column of unix and the 10th of tcp and tcp6, after a line of titles.
        let tables = [("unix", 6), ("tcp", 9), ("tcp6", 9)];
        let inodes = tables.into_iter().flat_map(|(table, column)| {
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            let inode = |line: &str| line.split_whitespace().nth(column)?.parse().ok();
            text.lines().skip(1).filter_map(inode).collect::<Vec<u64>>()
        });
        inodes.filter(|inode| self.sockets.contains(inode)).collect()
    }

    /// Names in `/dev/shm` that look like Bonfire's. It needs none.
    pub(super) fn shared_memory() -> Vec<String> {
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("bonfire")).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::net::TcpListener;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn marked_processes_are_found_with_what_they_started() {
        let residue = Residue::new();
        let mut child = Command::new("/bin/sh")
            .args(["-c", "sleep 1000 & sleep 1000"])
            .env(MARK, residue.mark())
            .process_group(0)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while residue.processes().len() < 3 {
            assert!(Instant::now() < deadline, "{:?}", residue.processes());
            thread::sleep(LOOK_PAUSE);
        }
        assert!(residue.wait_for_the_last(Duration::ZERO).is_err());
        residue.clear();
        child.wait().unwrap();
        residue.wait_for_the_last(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_socket_is_open_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = rustix::fs::fstat(&listener).unwrap().st_ino;
        let mut residue = Residue::new();
        residue.sockets.insert(own);
        assert_eq!(residue.open_sockets(), [own]);
        drop(listener);
        // A process that another test starts has it, too, until its program runs.
        residue.wait_for_the_last(Duration::from_secs(60)).unwrap();
    }
}
