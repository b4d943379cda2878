//! The launcher's own output, to which all ranks write: one line at a time, each with its rank.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::environment::LauncherOutput;

/// The width of a terminal that does not tell.
const COLUMNS_DEFAULT: usize = 80;

/// Clears the terminal line that the cursor is in.
const CLEAR_LINE: &[u8] = b"\r\x1b[K";

/// Which of the two standard streams a rank wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Output,
    Error,
}

/// The two streams of the launcher behind one lock, because they often are one terminal.
pub(super) struct Screen {
    streams: Mutex<Streams>,
}

struct Streams {
    output: Box<dyn Write + Send>,
    error: Box<dyn Write + Send>,
    /// The width of the terminal that the error stream is, if it is one.
    columns: Option<usize>,
    output_is_terminal: bool,
    /// The status that stands in the last line of the terminal, to be overwritten.
    status: Vec<u8>,
    /// The prefix of whose status it is.
    status_prefix: String,
}

impl Screen {
    /// The standard streams of this process.
    pub(super) fn standard() -> Self {
        let columns = io::stderr().is_terminal().then(|| {
            rustix::termios::tcgetwinsize(io::stderr())
                .map(|size| usize::from(size.ws_col))
                .ok()
                .filter(|&columns| columns > 0)
                .unwrap_or(COLUMNS_DEFAULT)
        });
        Self::new(Streams {
            output: Box::new(io::stdout()),
            error: Box::new(io::stderr()),
            columns,
            output_is_terminal: io::stdout().is_terminal(),
            status: Vec::new(),
            status_prefix: String::new(),
        })
    }

    fn new(streams: Streams) -> Self {
        Self {
            streams: Mutex::new(streams),
        }
    }

    /// What the ranks are to know about it.
    pub(super) fn kind(&self) -> LauncherOutput {
        match self.lock().columns {
            Some(_) => LauncherOutput::StatusLine,
            None => LauncherOutput::Lines,
        }
    }

    /// Prints a line. An output that is closed or full is not the job's trouble: the line is lost.
    pub(super) fn line(&self, channel: Channel, prefix: &str, text: &[u8]) {
        let mut line = Vec::with_capacity(prefix.len() + text.len() + 1);
        line.extend_from_slice(prefix.as_bytes());
        line.extend_from_slice(text);
        line.push(b'\n');
        let mut streams = self.lock();
        let _ = streams.hide_status_before(channel);
        // A line takes the place of a status of the same stream, as on a terminal of its own.
        if channel == Channel::Error && streams.status_prefix == prefix {
            streams.status.clear();
        }
        let _ = streams.line(channel, &line);
    }

    /// Shows a status in the last line of the terminal, in place of the one before; where there is no
    /// terminal, prints it as a line.
    pub(super) fn status(&self, channel: Channel, prefix: &str, text: &[u8]) {
        match self.kind() {
            LauncherOutput::StatusLine => self.preview(prefix, text),
            LauncherOutput::Lines | LauncherOutput::Direct => self.line(channel, prefix, text),
        }
    }

    /// Shows a status that may not be complete; where there is no terminal, does nothing.
    pub(super) fn preview(&self, prefix: &str, text: &[u8]) {
        if self.kind() == LauncherOutput::StatusLine {
            let _ = self.lock().show(prefix, text);
        }
    }

    /// Removes the status, before something else prints.
    pub(super) fn clear_status(&self) {
        let mut streams = self.lock();
        let _ = streams.hide_status();
        streams.status.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    fn line(&mut self, channel: Channel, line: &[u8]) -> io::Result<()> {
        let stream = match channel {
            Channel::Output => &mut self.output,
            Channel::Error => &mut self.error,
        };
        stream.write_all(line)?;
        stream.flush()?;
        if self.shares_terminal(channel) && !self.status.is_empty() {
            self.error.write_all(&self.status)?;
            self.error.flush()?;
        }
        Ok(())
    }

    /// Whether what is written to the channel appears where the status stands.
    fn shares_terminal(&self, channel: Channel) -> bool {
        channel == Channel::Error || self.output_is_terminal
    }

    fn show(&mut self, prefix: &str, text: &[u8]) -> io::Result<()> {
        let columns = self.columns.unwrap_or(COLUMNS_DEFAULT);
        let status = fit(prefix, text, columns).into_bytes();
        if status == self.status {
            return Ok(());
        }
        self.hide_status()?;
        self.status = status;
        prefix.clone_into(&mut self.status_prefix);
        self.error.write_all(&self.status)?;
        self.error.flush()
    }

    fn hide_status_before(&mut self, channel: Channel) -> io::Result<()> {
        if self.shares_terminal(channel) {
            self.hide_status()?;
        }
        Ok(())
    }

    fn hide_status(&mut self) -> io::Result<()> {
        if self.status.is_empty() {
            return Ok(());
        }
        self.error.write_all(CLEAR_LINE)?;
        self.error.flush()
    }
}

/// The text cut to less than a line of the terminal, because a wrapped line cannot be cleared.
fn fit(prefix: &str, text: &[u8], columns: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let characters = prefix.chars().chain(text.chars());
    characters.take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What was written to both streams, in order.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn screen(columns: Option<usize>) -> (Screen, Paper) {
        let paper = Paper::default();
        let screen = Screen::new(Streams {
            output: Box::new(paper.clone()),
            error: Box::new(paper.clone()),
            columns,
            output_is_terminal: columns.is_some(),
            status: Vec::new(),
            status_prefix: String::new(),
        });
        (screen, paper)
    }

    fn text(paper: &Paper) -> String {
        String::from_utf8(paper.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_carry_their_prefix() {
        let (screen, paper) = screen(None);
        screen.line(Channel::Output, "[rank 0] ", b"one");
        screen.line(Channel::Error, "[rank 1] ", b"");
        assert_eq!(text(&paper), "[rank 0] one\n[rank 1] \n");
    }

    #[test]
    fn without_a_terminal_a_status_is_a_line() {
        let (screen, paper) = screen(None);
        screen.status(Channel::Error, "[rank 0] ", b"10%");
        assert_eq!(text(&paper), "[rank 0] 10%\n");
    }

    #[test]
    fn a_status_stays_below_the_lines_until_it_is_cleared() {
        let (screen, paper) = screen(Some(80));
        screen.status(Channel::Error, "", b"10%");
        screen.line(Channel::Output, "", b"one");
        screen.clear_status();
        screen.line(Channel::Output, "", b"two");
        assert_eq!(text(&paper), "10%\r\x1b[Kone\n10%\r\x1b[Ktwo\n");
    }

    #[test]
    fn a_line_of_the_same_rank_replaces_its_status() {
        let (screen, paper) = screen(Some(80));
        screen.status(Channel::Error, "[0] ", b"10%");
        screen.line(Channel::Error, "[1] ", b"one");
        screen.line(Channel::Error, "[0] ", b"100%");
        screen.line(Channel::Error, "[0] ", b"end");
        assert_eq!(
            text(&paper),
            "[0] 10%\r\x1b[K[1] one\n[0] 10%\r\x1b[K[0] 100%\n[0] end\n"
        );
    }

    #[test]
    fn a_status_never_fills_the_line() {
        assert_eq!(fit("[rank 0] ", "äöü".as_bytes(), 12), "[rank 0] äö");
    }
}
