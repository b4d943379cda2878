//! The terminal in front of the user, which the launcher lends to rank 0.
//!
//! A program that draws on all of the screen puts the terminal into raw mode. That is how the
//! launcher knows: nobody has to report when drawing begins and ends, and a rank that was killed
//! while it drew leaves the mark behind that says what to put in order.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bonfire_plan::Rank;
use bonfire_sys::process::{ChildProcess, Guard};
use rustix::fs::{Mode, OFlags};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
    ttyname,
};

use super::screen::Screen;
use crate::environment::TERMINAL;

/// Time between two looks at the terminal: short for a person, long for a processor.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// No mouse events, the main screen, the cursor: what drawing programs change and a killed one leaves.
const LEAVE: &[u8] =
    b"\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1049l\x1b[?25h\x1b[0m";

/// A special character that no key has.
const NO_KEY: u8 = 0;
pub(crate) const ARTIST: Rank = Rank::new(0);

/// The screen of this process, and its terminal, if it has one and a rank of it may draw there.
pub(crate) fn open(may_draw: bool) -> io::Result<(Arc<Screen>, Option<TerminalWatch>)> {
    let terminal = may_draw.then(Terminal::of_this_process).flatten();
    let terminal = terminal.map(Arc::new);
    let screen = Arc::new(Screen::standard(terminal.clone()));
    let watch = terminal.map(|terminal| TerminalWatch::start(terminal, Arc::clone(&screen)));
    Ok((screen, watch.transpose()?))
}

/// Starts the process of a rank, which finds the terminal if it may draw. That of a launcher around this
/// one is not this one's to lend.
pub(crate) fn spawn(
    mut command: Command,
    rank: Rank,
    terminal: Option<&TerminalWatch>,
    guard: &Arc<Guard>,
) -> io::Result<ChildProcess> {
    match terminal.filter(|_| rank == ARTIST) {
        Some(watch) => {
            command.env(TERMINAL, watch.terminal.path());
            ChildProcess::spawn_in_session(command, guard)
        }
        None => {
            command.env_remove(TERMINAL);
            ChildProcess::spawn(command, guard)
        }
    }
}

/// The terminal that is this process's standard input and output.
#[derive(Debug)]
pub(crate) struct Terminal {
    path: Vec<u8>,
    device: OwnedFd,
    /// How it was before any rank came.
    before: Termios,
    /// Whether somebody drew at the last look.
    was_drawn_on: AtomicBool,
}

impl Terminal {
    /// Nothing if there is none, if input and output are two, if this process is in the background, or
    /// if somebody draws on it already.
    fn of_this_process() -> Option<Self> {
        let (input, output) = (io::stdin(), io::stdout());
        let path = ttyname(&input, Vec::new()).ok()?;
        if path != ttyname(&output, Vec::new()).ok()? || !is_in_front(&input) {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let device = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        let before = tcgetattr(&device).ok()?;
        let terminal =
            Self { path: path.into_bytes(), device, before, was_drawn_on: AtomicBool::new(false) };
        (!terminal.is_drawn_on()).then_some(terminal)
    }

    fn path(&self) -> &OsStr {
        OsStr::from_bytes(&self.path)
    }

    /// Whether somebody draws here. If this process is in the background, it is the shell with its prompt, and the kernel
    /// would stop this process for a change of the terminal.
    pub(crate) fn is_drawn_on(&self) -> bool {
        let now = tcgetattr(&self.device);
        now.is_ok_and(|now| !now.local_modes.contains(LocalModes::ICANON))
            && is_in_front(&self.device)
    }

    /// Whether the screen may be that of somebody who draws: raw mode ends before the old screen is back.
    pub(crate) fn may_be_drawn_on(&self) -> bool {
        self.was_drawn_on.load(Ordering::Relaxed) || self.is_drawn_on()
    }

    /// Makes Ctrl-C a signal again, for this process, while somebody draws: in raw mode it is a key,
    /// which Burn's display ignores. Nothing else becomes a signal, because a launcher that is stopped
    /// could not put anything in order; and nothing that was drawn is thrown away.
    fn pass_interrupts(&self) -> rustix::io::Result<()> {
        let mut modes = tcgetattr(&self.device)?;
        modes.local_modes |= LocalModes::ISIG | LocalModes::NOFLSH;
        for key in [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT] {
            modes.special_codes[key] = NO_KEY;
        }
        tcsetattr(&self.device, OptionalActions::Now, &modes)
    }

    /// Puts in order what a drawing program has left, if anything.
    fn restore(&self) -> rustix::io::Result<()> {
        if !self.is_drawn_on() {
            return Ok(());
        }
        tcsetattr(&self.device, OptionalActions::Flush, &self.before)?;
        let mut left = LEAVE;
        while !left.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.device, left))?;
            left = &left[written..];
        }
        Ok(())
    }
}

fn is_in_front(terminal: impl AsFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp())
}

/// Looks after the terminal while ranks run. Dropped, when none does any more, it restores it.
#[derive(Debug)]
pub(crate) struct TerminalWatch {
    terminal: Arc<Terminal>,
    /// Closed to end the thread.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TerminalWatch {
    fn start(terminal: Arc<Terminal>, screen: Arc<Screen>) -> io::Result<Self> {
        let (open, closed) = channel::<()>();
        let watched = Arc::clone(&terminal);
        let thread =
            thread::Builder::new().name("bonfire-terminal".to_owned()).spawn(move || {
                while closed.recv_timeout(LOOK_PAUSE) == Err(RecvTimeoutError::Timeout) {
                    let is_drawn_on = watched.is_drawn_on();
                    let was_drawn_on = watched.was_drawn_on.swap(is_drawn_on, Ordering::Relaxed);
                    match (was_drawn_on, is_drawn_on) {
                        // A terminal that is gone needs nothing.
                        (false, true) => drop(watched.pass_interrupts()),
                        (false, false) => screen.release(),
                        (true, _) => {}
                    }
                }
            })?;
        Ok(Self { terminal, open: Some(open), thread: Some(thread) })
    }
}

impl Drop for TerminalWatch {
    fn drop(&mut self) {
        self.open = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // There is no reader for an error, and the verdict matters more.
        let _ = self.terminal.restore();
        self.terminal.was_drawn_on.store(false, Ordering::Relaxed);
    }
}
