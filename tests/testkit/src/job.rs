//! A command with processes of its own: what it says, how it ends, and what it leaves behind.

mod again;
mod port;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use bonfire_sys::process::ProcessStat;

pub use again::{again, measured, print_figure, task};
pub use port::OwnPort;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Far more than any job of a test takes, so that a hang is a failed test and not an endless one.
pub(crate) const JOB_WATCHDOG: Duration = Duration::from_secs(120);

/// Pause between two looks at a process.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// A running command, killed if the test gives up.
#[derive(Debug)]
pub struct Job {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    deadline: Instant,
}

/// All that a job said and that was not read before, and how it ended.
#[derive(Debug)]
pub struct JobEnd {
    pub status: ExitStatus,
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
}

impl Job {
    /// Starts the command with both streams captured, without what the environment of the test may
    /// say about ranks.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        Self::start_for(command, JOB_WATCHDOG)
    }

    /// As [`start`](Self::start), for a command that hangs if it takes longer than `limit`.
    #[track_caller]
    pub fn start_for(command: &mut Command, limit: Duration) -> Self {
        forget_ranks(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command of a test exists");
        let stdout = lines(child.stdout.take().expect("stdout is piped"));
        let stderr = lines(child.stderr.take().expect("stderr is piped"));
        Self { child, stdout, stderr, deadline: Instant::now() + limit }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process that the command, a launcher, has started for a rank.
    #[track_caller]
    pub fn process_of_rank(&self, rank: u32) -> u32 {
        let entries = fs::read_dir("/proc").expect("Linux has it").flatten();
        let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let variable = format!("RANK={rank}");
        let found = ids.find(|&id| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            ProcessStat::read(id).is_some_and(|stat| stat.parent == self.id())
                && environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
        });
        found.unwrap_or_else(|| panic!("rank {rank} does not run"))
    }

    /// The next line of output, waiting for it.
    #[track_caller]
    pub fn next_line(&self) -> String {
        self.try_line().unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`next_line`](Self::next_line).
    ///
    /// # Errors
    /// There is none, and what the error stream says.
    pub fn try_line(&self) -> Result<String, String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.stdout.recv_timeout(left).map_err(|error| {
            let said: Vec<String> = self.stderr.try_iter().collect();
            format!("no line of output ({error}); the error stream says {said:?}")
        })
    }

    /// Waits for a line of the error stream with `text` in it.
    #[track_caller]
    pub fn until_printed(&self, text: &str) {
        let left = || self.deadline.saturating_duration_since(Instant::now());
        while !self
            .stderr
            .recv_timeout(left())
            .unwrap_or_else(|error| panic!("no {text:?} ({error})"))
            .contains(text)
        {}
    }

    /// The numbers at the ends of the next `count` lines of output.
    #[track_caller]
    pub fn next_numbers(&self, count: usize) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            let line = self.next_line();
            let word = line.rsplit(' ').next().unwrap_or_default();
            let number = word.parse();
            numbers.push(number.unwrap_or_else(|_| panic!("no number at the end of {line:?}")));
        }
        numbers
    }

    /// Sends a signal to the command itself, not to what it started.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the command is our child");
    }

    #[track_caller]
    pub fn end(self) -> JobEnd {
        self.try_end().unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`end`](Self::end), of a job that succeeds.
    #[track_caller]
    pub fn succeed(self) -> JobEnd {
        self.end_with(0)
    }

    /// As [`end`](Self::end), of a job that ends with this code.
    #[track_caller]
    pub fn end_with(self, code: i32) -> JobEnd {
        self.end().with_code(code)
    }

    /// As [`end`](Self::end).
    ///
    /// # Errors
    /// The job hangs, and what the error stream says.
    pub fn try_end(mut self) -> Result<JobEnd, String> {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the command is our child") {
                break status;
            }
            if Instant::now() > self.deadline {
                let said: Vec<String> = self.stderr.try_iter().collect();
                return Err(format!("the job hangs; its error stream says {said:?}"));
            }
            thread::sleep(LOOK_PAUSE);
        };
        Ok(JobEnd { status, stdout: self.rest(&self.stdout), stderr: self.rest(&self.stderr) })
    }

    /// What comes until the stream ends, which the death of every writer does.
    fn rest(&self, lines: &Receiver<String>) -> Vec<String> {
        let left = || self.deadline.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| lines.recv_timeout(left()).ok()).collect()
    }
}

impl JobEnd {
    /// Asserts that the job ended with this code.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program as the ranks of a job that no launcher of ours has started: the end of each.
#[track_caller]
pub fn of_another_launcher(
    world_size: u32,
    limit: Duration,
    program: impl Fn() -> Command,
) -> Vec<JobEnd> {
    let port = OwnPort::new();
    let start = |rank: u32| {
        let mut command = program();
        command.env("RANK", rank.to_string());
        command.env("WORLD_SIZE", world_size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", port.to_string());
        Job::start_for(&mut command, limit)
    };
    let jobs: Vec<Job> = (0..world_size).map(start).collect();
    jobs.into_iter().map(Job::end).collect()
}

pub fn signal_process(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("the process exists");
}

/// Whether a process exists and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Waits until all of the processes are stopped, or none is.
#[track_caller]
pub fn wait_until_stopped(pids: &[u32], stopped: bool) {
    let deadline = Instant::now() + JOB_WATCHDOG;
    let differs = |&&pid: &&u32| is_stopped(pid) != stopped;
    while let Some(pid) = pids.iter().find(differs) {
        assert!(Instant::now() < deadline, "process {pid}: {:?}", state(*pid));
        thread::sleep(LOOK_PAUSE);
    }
}

/// Whether a process is stopped, or waits within `vfork` for a child that is.
fn is_stopped(pid: u32) -> bool {
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok();
    let is_stopped = |pid: &str| pid.parse().is_ok_and(is_stopped);
    match state(pid) {
        Some('T') => true,
        Some('D') => children().is_some_and(|pids| pids.split_whitespace().any(is_stopped)),
        _ => false,
    }
}

fn state(pid: u32) -> Option<char> {
    ProcessStat::read(pid).map(|stat| stat.state)
}

#[track_caller]
pub fn wait_until_gone(pids: &[u32]) {
    let deadline = Instant::now() + JOB_WATCHDOG;
    while let Some(pid) = pids.iter().find(|&&pid| is_running(pid)) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
        thread::sleep(LOOK_PAUSE);
    }
}

#[track_caller]
pub fn assert_gone(pids: &[u32]) {
    for &pid in pids {
        assert!(!is_running(pid), "process {pid} outlived its job");
    }
}

/// Takes out of a command's environment what that of the test may say about ranks.
pub(crate) fn forget_ranks(command: &mut Command) {
    let ours = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RAYON_NUM_THREADS",
        "GLIBC_TUNABLES",
        "BONFIRE_JOB_TOKEN",
        "BONFIRE_JOB_TOKEN_FILE",
        "BONFIRE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "BONFIRE_OUTPUT",
        "BONFIRE_LAUNCHER",
        "BONFIRE_TERMINAL",
        "BONFIRE_FLIGHT_DIR",
        "BONFIRE_HOST_ID",
        "BONFIRE_ALGORITHM",
        "BONFIRE_STREAMS",
        "BONFIRE_STREAM_THREADS",
        "BONFIRE_TLS",
        "BONFIRE_BUILDS",
        "BONFIRE_CHECKSUMS",
        "BONFIRE_CALL_SITES",
        "BONFIRE_NPROC",
        "BONFIRE_DEVICE",
        "BONFIRE_LOG",
        "BONFIRE_FLIGHT_DIR",
        // A backtrace would only push the message out of sight.
        "RUST_BACKTRACE",
    ];
    let asked: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for variable in ours {
        if !asked.iter().any(|name| name == variable) {
            command.env_remove(variable);
        }
    }
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    receiver
}
