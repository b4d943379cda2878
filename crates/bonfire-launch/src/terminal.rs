//! The rank's side of drawing on the launcher's terminal.
//!
//! The launcher reads the output of all ranks through pipes, line by line, so that no two write over each other; a
//! program that draws on all of the screen needs the terminal itself. The launcher gives rank 0 its path, and takes
//! no part in what happens there; it looks whether somebody draws, and holds back the lines of the others meanwhile.

use std::ffi::OsString;
use std::io::{self, Write};

use rustix::fs::{Mode, OFlags};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use rustix::termios::isatty;

use crate::environment::TERMINAL;

/// Whether this process has the launcher's terminal now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalClaim {
    /// Its standard input and output are the terminal.
    Taken,
    /// They are what they were: the launcher is missing, has no terminal, is not of this project, or lends it
    /// to another rank.
    NotOffered,
}

/// The launcher's terminal cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// It cannot be opened, as one that belongs to another user.
    #[error("the launcher's terminal {} cannot be opened", .path.display())]
    Open {
        /// The path of the terminal.
        path: OsString,
        /// What the operating system said.
        source: io::Error,
    },
    /// There is something else now.
    #[error("{} is not a terminal", .path.display())]
    NotATerminal {
        /// The path where it was.
        path: OsString,
    },
    /// It cannot take the place of a standard stream.
    #[error("the launcher's terminal cannot become this process's input and output")]
    Streams(#[source] io::Error),
}

/// Makes the launcher's terminal the standard input and output of this process, if the launcher lends it,
/// which it does to rank 0 when its own input and output are one: call this before something draws on
/// all of the screen. Burn's learner does after `distributed`.
///
/// What this process prints from then on appears as it is, without the rank before it. What it writes to
/// its error stream, and what other ranks print, the launcher prints as before, after the drawing has
/// ended if need be. Whatever a process that is killed leaves behind, raw mode and alternate screen, the
/// launcher puts in order. While something draws, Ctrl-C is SIGTERM for all ranks, as ever.
///
/// # Errors
/// The terminal cannot be opened. Nothing has changed then.
pub fn claim_terminal() -> Result<TerminalClaim, TerminalError> {
    let Some(path) = std::env::var_os(TERMINAL).filter(|path| !path.is_empty()) else {
        return Ok(TerminalClaim::NotOffered);
    };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(terminal) => terminal,
        Err(source) => {
            let source = source.into();
            return Err(TerminalError::Open { path, source });
        }
    };
    if !isatty(&terminal) {
        return Err(TerminalError::NotATerminal { path });
    }
    // What was printed before belongs into the pipe.
    io::stdout().flush().map_err(TerminalError::Streams)?;
    dup2_stdin(&terminal)
        .and_then(|()| dup2_stdout(&terminal))
        .map_err(|error| TerminalError::Streams(error.into()))?;
    Ok(TerminalClaim::Taken)
}
