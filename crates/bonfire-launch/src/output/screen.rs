//! The launcher's own output, to which all ranks write: one line at a time, each with its rank.
//!
//! While a rank draws on the terminal, what the others say is held back.

use bonfire_sys::lock::Mutex;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use super::held::Held;
use super::terminal::Terminal;
use crate::environment::{LauncherOutput, draws_on};

const COLUMNS_DEFAULT: usize = 80;
const CLEAR_LINE: &[u8] = b"\r\x1b[K";

/// Which of the two standard streams a rank wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Output,
    Error,
}

/// The two streams of the launcher behind one lock, because they often are one terminal.
pub(crate) struct Screen {
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
    status_prefix: String,
    /// Whether the terminal may show what a rank draws.
    is_drawn_on: Box<dyn Fn() -> bool + Send>,
    /// What came while one did.
    held: Held,
}

impl Screen {
    /// The standard streams of this process. A rank may draw on `terminal`.
    pub(crate) fn standard(terminal: Option<Arc<Terminal>>) -> Self {
        let columns = draws_on(&io::stderr()).then(|| {
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
            is_drawn_on: Box::new(move || {
                let terminal = terminal.as_ref();
                terminal.is_some_and(|terminal| terminal.may_be_drawn_on())
            }),
            held: Held::default(),
        })
    }

    fn new(streams: Streams) -> Self {
        Self { streams: Mutex::new(streams) }
    }

    pub(crate) fn kind(&self) -> LauncherOutput {
        match self.streams.lock().columns {
            Some(_) => LauncherOutput::StatusLine,
            None => LauncherOutput::Lines,
        }
    }

    /// Prints a line. An output that is closed or full is not the job's trouble: the line is lost.
    pub(crate) fn line(&self, channel: Channel, prefix: &str, text: &[u8]) {
        let mut line = Vec::with_capacity(prefix.len() + text.len() + 1);
        line.extend_from_slice(prefix.as_bytes());
        line.extend_from_slice(text);
        line.push(b'\n');
        let mut streams = self.streams.lock();
        if !streams.held.is_empty() || (streams.is_drawn_on)() {
            streams.held.push(channel, line);
            return;
        }
        let _ = streams.hide_status_before(channel);
        // A line takes the place of a status of the same stream, as on a terminal of its own.
        if channel == Channel::Error && streams.status_prefix == prefix {
            streams.status.clear();
        }
        let _ = streams.line(channel, &line);
    }

    /// Shows a status in the last line of the terminal, in place of the one before; where there is no
    /// terminal, prints it as a line.
    pub(crate) fn status(&self, channel: Channel, prefix: &str, text: &[u8]) {
        match self.kind() {
            LauncherOutput::StatusLine => self.preview(prefix, text),
            LauncherOutput::Lines | LauncherOutput::Direct => self.line(channel, prefix, text),
        }
    }

    /// Shows a status that may not be complete; where there is no terminal, does nothing.
    pub(crate) fn preview(&self, prefix: &str, text: &[u8]) {
        if self.kind() == LauncherOutput::StatusLine {
            let mut streams = self.streams.lock();
            if !(streams.is_drawn_on)() {
                let _ = streams.show(prefix, text);
            }
        }
    }

    /// Prints the lines that were held back, unless somebody draws.
    pub(crate) fn release(&self) {
        let mut streams = self.streams.lock();
        if streams.held.is_empty() || (streams.is_drawn_on)() {
            return;
        }
        let (lines, lost) = streams.held.take();
        let _ = streams.hide_status();
        if lost > 0 {
            let note = format!("{lost} lines that came while rank 0 drew are left out here\n");
            let _ = streams.line(Channel::Error, note.as_bytes());
        }
        for (channel, line) in lines {
            let _ = streams.line(channel, &line);
        }
    }

    /// Removes the status, before something else prints.
    pub(crate) fn clear_status(&self) {
        let mut streams = self.streams.lock();
        if !(streams.is_drawn_on)() {
            let _ = streams.hide_status();
        }
        streams.status.clear();
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// What was written to both streams, in order.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn screen(columns: Option<usize>) -> (Screen, Paper) {
        drawn_screen(columns, &Arc::default())
    }

    /// On which somebody draws while `drawing` says so.
    fn drawn_screen(columns: Option<usize>, drawing: &Arc<AtomicBool>) -> (Screen, Paper) {
        let paper = Paper::default();
        let drawing = Arc::clone(drawing);
        let screen = Screen::new(Streams {
            output: Box::new(paper.clone()),
            error: Box::new(paper.clone()),
            columns,
            output_is_terminal: columns.is_some(),
            status: Vec::new(),
            status_prefix: String::new(),
            is_drawn_on: Box::new(move || drawing.load(Ordering::Relaxed)),
            held: Held::default(),
        });
        (screen, paper)
    }

    fn text(paper: &Paper) -> String {
        String::from_utf8(paper.0.lock().clone()).unwrap()
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
        assert_eq!(text(&paper), "[0] 10%\r\x1b[K[1] one\n[0] 10%\r\x1b[K[0] 100%\n[0] end\n");
    }

    #[test]
    fn a_status_never_fills_the_line() {
        assert_eq!(fit("[rank 0] ", "äöü".as_bytes(), 12), "[rank 0] äö");
    }

    #[test]
    fn lines_wait_while_a_rank_draws() {
        let drawing = Arc::new(AtomicBool::new(false));
        let (screen, paper) = drawn_screen(Some(80), &drawing);
        screen.line(Channel::Output, "[1] ", b"before");
        drawing.store(true, Ordering::Relaxed);
        screen.line(Channel::Error, "[1] ", b"while");
        screen.status(Channel::Error, "[1] ", b"10%");
        screen.release();
        assert_eq!(text(&paper), "[1] before\n");
        drawing.store(false, Ordering::Relaxed);
        // In order, although nobody draws any more.
        screen.line(Channel::Output, "[1] ", b"after");
        assert_eq!(text(&paper), "[1] before\n");
        screen.release();
        assert_eq!(text(&paper), "[1] before\n[1] while\n[1] after\n");
        screen.line(Channel::Output, "[1] ", b"end");
        assert!(text(&paper).ends_with("after\n[1] end\n"));
    }
}
