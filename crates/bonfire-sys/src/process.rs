//! Child processes that never outlive the job.
//!
//! Each child leads its own process group (one that may draw on the terminal leads a session), so that a
//! signal reaches whatever it started as well and a Ctrl-C on the terminal reaches only the launcher. Each child asks the kernel for a SIGKILL when
//! its parent dies, so that even a launcher that is itself killed leaves no rank behind, and a
//! [`Guard`] then ends what the children had started. What this cannot reach: a grandchild that left
//! the group (a daemon).

mod guard;
mod heap;
mod interrupt;
mod open_files;
mod request;
mod resident;
mod stat;

use std::io;
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

pub use guard::Guard;
pub use heap::release_freed_memory;
pub use interrupt::{Interrupt, InterruptWatch, StopWatch, is_orphaned, stop_this_process};
pub use open_files::{open_files_left, raise_open_files};
pub use request::RequestWatch;
pub use resident::Resident;
pub use stat::ProcessStat;

/// How long a dropped child may take to vanish after its SIGKILL before it is left to the kernel.
const DROP_WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildSignal {
    Terminate,
    Kill,
    /// SIGSTOP: the kernel lets the child do nothing. The kernel keeps SIGTSTP from a session without a terminal.
    Stop,
    /// SIGCONT: resumes the child if it is stopped.
    Continue,
}

/// A running child process, the leader of its own process group.
///
/// It is not `Send`: the kernel ties the life of the child to the *thread* that started it, so this
/// handle stays on that thread, and a thread that ends drops it, which kills the child.
///
/// ```compile_fail
/// fn assert_send<T: Send>() {}
/// assert_send::<bonfire_sys::process::ChildProcess>();
/// ```
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    pid: Pid,
    reaped: bool,
    guard: Arc<Guard>,
    _stays_on_its_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
pub struct ExitWatch {
    pid: Pid,
}

impl ChildProcess {
    /// Starts `command` in its own process group, to be killed when this thread ends. If this
    /// process ends, the guard kills the group.
    pub fn spawn(mut command: Command, guard: &Arc<Guard>) -> io::Result<Self> {
        command.process_group(0);
        Self::start(command, Leads::Group, guard)
    }

    /// As [`spawn`](Self::spawn), in a session of its own, which leads a process group too. Such a child
    /// may read, draw on and set up any terminal that it has open, because no job control is between them,
    /// while the terminal's Ctrl-C still reaches this process. It has no `/dev/tty`.
    pub fn spawn_in_session(command: Command, guard: &Arc<Guard>) -> io::Result<Self> {
        Self::start(command, Leads::Session, guard)
    }

    fn start(mut command: Command, leads: Leads, guard: &Arc<Guard>) -> io::Result<Self> {
        prepare_child(&mut command, leads);
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        guard.watch(pid);
        Ok(Self {
            child,
            pid,
            reaped: false,
            guard: Arc::clone(guard),
            _stays_on_its_thread: PhantomData,
        })
    }

    /// The process id, which is the id of its group too.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The writing end of the child's standard input, once, when the command pipes it.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The reading end of the child's standard output, once, when the command pipes it.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The reading end of the child's standard error, once, when the command pipes it.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    pub fn exit_watch(&self) -> ExitWatch {
        ExitWatch { pid: self.pid }
    }

    /// Whether the child is stopped, as by SIGSTOP or Ctrl-Z: alive, and doing nothing.
    pub fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        // The kernel reports nothing of a child that has been continued since.
        let seen = rustix::process::waitid(WaitId::Pid(self.pid), options);
        !self.reaped && matches!(seen, Ok(Some(status)) if status.stopped())
    }

    /// Sends a signal to the child and to all of its group. Nothing happens after [`reap`](Self::reap).
    /// One that is to clean up is woken for it if it is stopped.
    pub fn signal_group(&self, signal: ChildSignal) -> io::Result<()> {
        // A process id may be used again only after its process was reaped, so until then this
        // cannot reach a stranger.
        if self.reaped {
            return Ok(());
        }
        let signal = match signal {
            ChildSignal::Terminate => Signal::TERM,
            ChildSignal::Kill => Signal::KILL,
            ChildSignal::Stop => Signal::STOP,
            ChildSignal::Continue => Signal::CONT,
        };
        let send = |signal| match rustix::process::kill_process_group(self.pid, signal) {
            // All of the group may have ended already.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error),
        };
        send(signal)?;
        if signal == Signal::TERM {
            send(Signal::CONT)?;
        }
        Ok(())
    }

    /// Takes the exit status of a child that an [`ExitWatch`] has seen end, and kills whatever is
    /// left of its group; blocks while the child still runs.
    pub fn reap(&mut self) -> io::Result<ExitStatus> {
        if !self.reaped {
            ExitWatch { pid: self.pid }.wait()?;
            // The leader is a zombie now, which keeps its id, so the group is still its own.
            self.signal_group(ChildSignal::Kill)?;
            self.guard.release(self.pid);
        }
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if self.reaped || self.signal_group(ChildSignal::Kill).is_err() {
            return;
        }
        let deadline = Instant::now() + DROP_WAIT;
        // What has had its SIGKILL needs no guard.
        self.guard.release(self.pid);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ExitWatch {
    /// Blocks until the child has ended, and leaves its status to [`ChildProcess::reap`].
    pub fn wait(&self) -> io::Result<()> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match rustix::process::waitid(WaitId::Pid(self.pid), options) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    /// A process group, made before this.
    Group,
    Session,
}

/// Has the child ask for a SIGKILL at the death of this thread, and begin its session if it leads one,
/// before it becomes the program.
fn prepare_child(command: &mut Command, leads: Leads) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        if leads == Leads::Session {
            rustix::process::setsid()?;
        }
        die_with(parent)
    };
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
    // allowed and the memory of other threads may be in any state. It makes at most three raw system
    // calls (setsid, prctl, getppid), compares integers it owns, and on failure returns an `io::Error`
    // made from an error number, which allocates nothing; it takes no lock and touches no shared memory.
    unsafe { command.pre_exec(prepare) };
}

/// Calls nothing that is not async-signal-safe.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that died before the line above will send no signal any more; then the child has another
    // parent by now.
    if rustix::process::getppid() != Some(parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    Ok(())
}

/// Other systems have no such signal; there a killed launcher can leave ranks, which end when they
/// next wait for a peer or for the store.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests;
