//! A command on a terminal of its own, in front of which the test sits.
//!
//! The pseudo terminal is made by `script` of util-linux, so that the command is in the terminal's
//! foreground, as from a shell, and Ctrl-C is a signal for it.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::{JOB_WATCHDOG, forget_ranks};

const READ_BYTES: usize = 16 << 10;

/// Said after the command's end.
const AS_BEFORE: &str = "the terminal is as before";

/// A running command and its terminal; killed if the test gives up.
#[derive(Debug)]
pub struct Console {
    script: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    seen: Vec<u8>,
    deadline: Instant,
}

#[derive(Debug)]
pub struct ConsoleEnd {
    pub status: ExitStatus,
    /// All that was written to the terminal.
    pub seen: String,
    /// Whether the terminal's modes were the same before and after.
    pub is_as_before: bool,
}

/// Returns why no console can run here, if so.
pub fn script_is_missing() -> Option<String> {
    let mut command = Command::new("script");
    command.arg("--version").stdout(Stdio::null());
    command.stderr(Stdio::null());
    let error = match command.status() {
        Ok(status) if status.success() => return None,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Some(format!("script (util-linux) cannot be run: {error}"))
}

impl Console {
    /// Starts the command, with its arguments and the variables that were set for it, on a terminal of 40
    /// lines of 120 columns.
    #[track_caller]
    pub fn start(command: &Command) -> Self {
        let mut shell = String::from("stty rows 40 columns 120; before=$(stty -g); trap : INT;");
        for word in std::iter::once(command.get_program()).chain(command.get_args()) {
            write!(shell, " {}", quoted(word)).expect("a string takes all");
        }
        write!(
            shell,
            "; status=$?; [ \"$before\" = \"$(stty -g)\" ] && echo {}; exit $status",
            quoted(OsStr::new(AS_BEFORE))
        )
        .expect("a string takes all");
        let mut script = Command::new("script");
        script.args(["-qefc", &shell, "/dev/null"]);
        forget_ranks(&mut script);
        script.env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().expect("script exists");
        let output = chunks(script.stdout.take().expect("stdout is piped"));
        Self {
            keys: script.stdin.take().expect("stdin is piped"),
            script,
            output,
            seen: Vec::new(),
            deadline: Instant::now() + JOB_WATCHDOG,
        }
    }

    /// Waits until the text has been written to the terminal.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        while !contains(&self.seen, text.as_bytes()) {
            if let Err(error) = self.read() {
                panic!("no {text:?} ({error}) in {:?}", self.text());
            }
        }
    }

    /// Whether the text has been written to the terminal, or is within `limit`.
    pub fn comes(&mut self, text: &str, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !contains(&self.seen, text.as_bytes()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(chunk) => self.seen.extend_from_slice(&chunk),
                Err(_) => return false,
            }
        }
        true
    }

    #[track_caller]
    pub fn press(&mut self, keys: &[u8]) {
        let pressed = self.keys.write_all(keys).and_then(|()| self.keys.flush());
        pressed.expect("the terminal has a keyboard");
    }

    #[track_caller]
    pub fn end(mut self) -> ConsoleEnd {
        loop {
            match self.read() {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(error) => panic!("the command hangs ({error}): {:?}", self.text()),
            }
        }
        let status = self.script.wait().expect("script is our child");
        let seen = self.text();
        ConsoleEnd { status, is_as_before: seen.contains(AS_BEFORE), seen }
    }

    fn read(&mut self) -> Result<(), RecvTimeoutError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let chunk = self.output.recv_timeout(left)?;
        self.seen.extend_from_slice(&chunk);
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // It has ended already unless the test failed. Its terminal then ends with it, and with that the
        // command.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// A word that the shell takes as it is.
fn quoted(word: &OsStr) -> String {
    let word = word.to_str().expect("the words of a test are text");
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn chunks(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count) = stream.read(&mut buffer)
            && count > 0
        {
            if sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}
