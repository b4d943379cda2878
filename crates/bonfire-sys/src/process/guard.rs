//! A process that outlives its launcher for as long as it takes to end what the launcher left behind.
//!
//! The kernel kills the children of a launcher that is killed, but not what those had started: a
//! grandchild becomes an orphan and runs on. The guard knows the process groups of all children and
//! holds the reading end of a pipe. When the launcher is gone, however it went, the pipe ends, and the
//! guard kills every group that was not released before.

use crate::lock::Mutex;
use std::collections::BTreeSet;
use std::io::{self, PipeWriter, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::ExitWatch;

/// Groups that a guard can know at one time; more ranks than a host has cores for.
const GROUPS_MAX: usize = 4096;

/// The first descriptor after the standard streams.
const FIRST_OTHER_FD: u32 = 3;

/// Where old kernels are asked to close descriptors one by one.
const FDS_MAX: u32 = 4096;

/// Watches over process groups. Dropped, it kills those that were not released, and ends.
#[derive(Debug)]
pub struct Guard(Mutex<Post>);

#[derive(Debug)]
struct Post {
    process: Child,
    /// Closed before the process is waited for.
    messages: Option<PipeWriter>,
    groups: BTreeSet<i32>,
}

impl Guard {
    /// Starts the guard, which is a copy of this process that does nothing else.
    pub fn start() -> io::Result<Self> {
        let (process, writer) = start()?;
        let post = Post { process, messages: Some(writer), groups: BTreeSet::new() };
        Ok(Self(Mutex::new(post)))
    }

    /// A handle with which another thread can wait for the end of the process that stands guard, which
    /// somebody may kill.
    pub fn exit_watch(&self) -> ExitWatch {
        let pid = Pid::from_child(&self.0.lock().process);
        ExitWatch { pid }
    }

    /// Starts another process in place of one that has ended, for the groups that it watched over.
    pub fn renew(&self) -> io::Result<()> {
        let mut post = self.0.lock();
        // One that still stood there would end its groups with its pipe.
        post.process.kill()?;
        post.process.wait()?;
        let (process, writer) = start()?;
        post.process = process;
        post.messages = Some(writer);
        for group in post.groups.clone() {
            post.send(group);
        }
        Ok(())
    }

    /// From here on the group is killed when this process is gone.
    pub(super) fn watch(&self, group: Pid) {
        let mut post = self.0.lock();
        let group = group.as_raw_nonzero().get();
        post.groups.insert(group);
        post.send(group);
    }

    /// The group has ended, and its number may soon be another's.
    pub(super) fn release(&self, group: Pid) {
        let mut post = self.0.lock();
        let group = group.as_raw_nonzero().get();
        post.groups.remove(&group);
        post.send(-group);
    }
}

impl Post {
    fn send(&self, message: i32) {
        // A killed guard receives nothing; `renew` sends it to the next one.
        if let Some(mut messages) = self.messages.as_ref() {
            let _ = messages.write_all(&message.to_ne_bytes());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut post = self.0.lock();
        post.messages = None;
        // The end of the pipe ends it, after a few system calls: also one that somebody has stopped.
        let _ = kill_process(Pid::from_child(&post.process), Signal::CONT);
        let _ = post.process.wait();
    }
}

fn start() -> io::Result<(Child, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    // No such program is ever started: the copy stays what it is.
    let mut command = Command::new("bonfire-guard");
    command
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A Ctrl-C on the terminal is not for it.
        .process_group(0);
    // SAFETY: `stand_guard` runs between fork and exec, where only async-signal-safe calls are allowed and the memory
    // of other threads may be in any state. It makes raw system calls (close_range or close, prctl, read, kill,
    // exit_group), works on its own stack, allocates nothing, takes no lock, and never returns.
    unsafe { command.pre_exec(stand_guard) };
    Ok((command.spawn()?, writer))
}

/// What the guard does instead of becoming another program. Async-signal-safe.
fn stand_guard() -> io::Result<()> {
    // Also the writing end of its own pipe, the sockets of the launcher, and the descriptor whose
    // end tells the launcher that its new process is on its way.
    close_others();
    let _ = rustix::thread::set_name(c"bonfire-guard");
    // SAFETY: descriptor 0 is the reading end of the pipe, put there for this process, which never closes it.
    let messages = unsafe { BorrowedFd::borrow_raw(0) };
    let mut groups = [None; GROUPS_MAX];
    let mut message = [0; size_of::<i32>()];
    loop {
        // Messages are written whole and are shorter than any pipe, so they are read whole.
        match rustix::io::read(messages, &mut message) {
            Ok(count) if count == message.len() => note(&mut groups, i32::from_ne_bytes(message)),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    for group in groups.into_iter().flatten() {
        // A guard that has ended by itself is not an error.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // SAFETY: `_exit` ends the process without running anything of it.
    unsafe { libc::_exit(0) }
}

/// Records a new group, or removes the one given as a negative number.
fn note(groups: &mut [Option<Pid>], message: i32) {
    let (wanted, then) = if message > 0 {
        (None, Pid::from_raw(message))
    } else {
        (Pid::from_raw(message.saturating_neg()), None)
    };
    if let Some(place) = groups.iter_mut().find(|place| **place == wanted) {
        *place = then;
    }
}

fn close_others() {
    // SAFETY: closing takes three numbers and no memory; nothing in this process uses the descriptors
    // afterwards, because only the loop of `stand_guard` runs, on descriptor 0.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FIRST_OTHER_FD, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    for fd in FIRST_OTHER_FD..FDS_MAX {
        // SAFETY: as above.
        unsafe { libc::close(fd as libc::c_int) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stopped_guard_does_not_keep_its_launcher() {
        let guard = Guard::start().unwrap();
        let pid = Pid::from_child(&guard.0.lock().process);
        kill_process(pid, Signal::STOP).unwrap();
        let (ended, end) = channel();
        thread::spawn(move || {
            drop(guard);
            ended.send(())
        });
        end.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn groups_come_and_go() {
        let mut groups = [None; 3];
        let numbers = |groups: &[Option<Pid>]| -> Vec<i32> {
            let numbers = groups.iter().flatten();
            numbers.map(|pid| pid.as_raw_nonzero().get()).collect()
        };
        for message in [5, 6, -5, 7, 8, 9, -100, 0] {
            note(&mut groups, message);
        }
        // The fourth at one time has no place.
        assert_eq!(numbers(&groups), [7, 6, 8]);
    }
}
