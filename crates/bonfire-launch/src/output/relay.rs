//! Reads what one rank writes to one stream, on a thread of its own, and puts it on the screen.

use bonfire_sys::lock::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bonfire_plan::Rank;
use tracing::warn;

use super::error_dedup::ErrorDedup;
use super::lines::{Lines, Piece};
use super::logs::Sink;
use super::screen::{Channel, Screen};

const READ_BYTES: usize = 16 << 10;
/// How many lines are kept for the report on a failed rank.
const TAIL_LINES: usize = 20;
/// How much of a line is kept for that report.
const TAIL_LINE_BYTES: usize = 1 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Tail {
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock();
        lines.iter().cloned().collect()
    }

    fn push(&self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&line[..line.len().min(TAIL_LINE_BYTES)]).into_owned();
        let mut lines = self.lines.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

pub(crate) struct Relay {
    pub(crate) rank: Rank,
    /// Goes before each printed line.
    pub(crate) prefix: String,
    pub(crate) channel: Channel,
    pub(crate) screen: Arc<Screen>,
    pub(crate) dedup: Arc<ErrorDedup>,
    pub(crate) tail: Tail,
    pub(crate) sink: Sink,
}

impl Relay {
    /// Relays until the stream ends, which is when every process that holds its other end has ended.
    pub(crate) fn start(self, source: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("bonfire-relay".to_owned()).spawn(move || self.run(source))
    }

    fn run(mut self, mut source: impl Read) {
        let mut lines = Lines::default();
        let mut file = self.sink.file.take();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    keep(&mut file, &buffer[..count], &self.prefix);
                    lines.feed(&buffer[..count], |piece| self.put(piece));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A pipe that cannot be read has no more to say.
                Err(_) => break,
            }
        }
        lines.finish(|piece| self.put(piece));
    }

    fn put(&self, piece: Piece<'_>) {
        match piece {
            Piece::Line(text) => {
                self.tail.push(text);
                if self.sink.is_shown && !self.is_repeated(text) {
                    self.screen.line(self.channel, &self.prefix, text);
                }
            }
            Piece::Status(_) | Piece::Preview(_) if !self.sink.is_shown => {}
            Piece::Status(text) => self.screen.status(self.channel, &self.prefix, text),
            Piece::Preview(text) => self.screen.preview(&self.prefix, text),
        }
    }

    fn is_repeated(&self, text: &[u8]) -> bool {
        self.channel == Channel::Error && self.dedup.is_known(self.rank, text)
    }
}

/// Writes to the log file. One that takes no more, as on a full disk, is given up with a word: the
/// job is worth more than its log.
fn keep(file: &mut Option<File>, bytes: &[u8], prefix: &str) {
    let Some(open) = file else { return };
    if let Err(error) = open.write_all(bytes) {
        warn!("{prefix}the log file takes no more: {error}");
        *file = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_keeps_the_last_lines_and_not_much_of_each() {
        let tail = Tail::default();
        for index in 0..100 {
            tail.push(format!("line {index}").as_bytes());
        }
        tail.push(&[b'x'; 10 * TAIL_LINE_BYTES]);
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[0], "line 81");
        assert_eq!(lines[TAIL_LINES - 1].len(), TAIL_LINE_BYTES);
    }
}
