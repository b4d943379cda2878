//! A control connection to one peer, and what is under way on it.
//!
//! A message is `kind u8 | length u32 | CRC-32C of the text u32 | CRC-32C of these nine bytes u32 | JSON`,
//! at most [`MESSAGE_BYTES_MAX`] long. The header has a sum of its own, so that a length that was
//! changed on the way is not waited for. Writing never waits: what the connection does not take at once
//! stays here and goes out when it takes more.

use std::io::{self, Read, Write};
use std::sync::Arc;

use bonfire_plan::Rank;

use bonfire_connect::platform::net::Handle;
use bonfire_connect::platform::sync::Mutex;
use bonfire_connect::secure::stream::{FarEnd, Stream};

/// The longest message is a rank's flight record: some hundreds of bytes for each of its operations.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// What may wait to be sent. A peer that takes nothing for so long is stopped, and is sent no more.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Kind, length and the sum of the text.
const SUMMED_BYTES: usize = 9;
const HEADER_BYTES: usize = SUMMED_BYTES + size_of::<u32>();

/// What messages are about; the number is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Failure = 1,
    Farewell = 2,
    Report = 3,
    Question = 4,
    Answer = 5,
    Heartbeat = 6,
    Stragglers = 7,
    Joined = 8,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        let all = [
            Self::Failure,
            Self::Farewell,
            Self::Report,
            Self::Question,
            Self::Answer,
            Self::Heartbeat,
            Self::Stragglers,
            Self::Joined,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The sending half, used by every thread that has something to say.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(super) rank: Rank,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    /// Both directions of one socket; reading and writing do not disturb each other.
    stream: Stream,
    /// The rest of messages that are partly sent, and those behind them.
    backlog: Vec<u8>,
    /// Whether the stream keeps some that it has taken: one that encrypts does.
    is_held: bool,
}

impl Peer {
    /// Requires that `stream` does not block.
    pub(super) fn new(rank: Rank, stream: Stream) -> Self {
        let backlog = Vec::new();
        Self { rank, line: Mutex::new(Line { stream, backlog, is_held: false }) }
    }

    /// Sends a message, or leaves it to [`flush`](Self::flush). A broken connection is not an error
    /// here: the reading half finds out.
    pub(super) fn send(&self, kind: Kind, text: &[u8]) {
        assert!(
            text.len() <= MESSAGE_BYTES_MAX,
            "a control message of {} bytes where {MESSAGE_BYTES_MAX} are the limit",
            text.len()
        );
        let mut line = self.line.lock();
        if line.backlog.len() + text.len() > BACKLOG_BYTES_MAX {
            return;
        }
        line.backlog.extend_from_slice(&message(kind, text));
        line.flush();
    }

    /// Sends as much as goes out without waiting.
    pub(super) fn flush(&self) {
        self.line.lock().flush();
    }

    pub(super) fn has_backlog(&self) -> bool {
        let line = self.line.lock();
        line.is_held || !line.backlog.is_empty()
    }

    /// Reads what has come. Within a host, a process that ends with messages unread resets the connection.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let stream = &mut self.line.lock().stream;
        match stream.read(buffer) {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionReset
                    && matches!(stream, Stream::Unix(_)) =>
            {
                Ok(0)
            }
            read => read,
        }
    }

    /// Writes a byte that is not a message.
    pub(super) fn write_byte(&self, byte: u8) -> io::Result<()> {
        self.line.lock().stream.write_all(&[byte])
    }

    pub(super) fn far_end(&self) -> FarEnd {
        self.line.lock().stream.far_end()
    }

    /// Uses the connection for something else than messages.
    pub(super) fn with_stream<R>(&self, action: impl FnOnce(&Stream) -> R) -> R {
        action(&self.line.lock().stream)
    }
}

impl Line {
    fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.backlog.len() {
            match self.stream.write(&self.backlog[sent..]) {
                Ok(0) => break,
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Broken: nothing will go out any more.
                Err(_) => sent = self.backlog.len(),
            }
        }
        self.backlog.drain(..sent);
        let flushed = self.stream.flush();
        self.is_held = flushed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    }
}

pub(super) fn message(kind: Kind, text: &[u8]) -> Vec<u8> {
    [&header(kind, text)[..], text].concat()
}

fn header(kind: Kind, text: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind as u8;
    header[1..5].copy_from_slice(&(text.len() as u32).to_le_bytes());
    header[5..SUMMED_BYTES].copy_from_slice(&crc32c::crc32c(text).to_le_bytes());
    let sum = crc32c::crc32c(&header[..SUMMED_BYTES]);
    header[SUMMED_BYTES..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// What came from one peer and is not understood yet.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// To wait for news without the lock of the sending half.
    pub(super) handle: Arc<Handle>,
    pub(super) is_open: bool,
}

/// The peer sent something that is not a message, or not one any more.
#[derive(Debug)]
pub(super) struct Nonsense;

impl Inbox {
    pub(super) fn new(stream: &Stream) -> io::Result<Self> {
        Ok(Self { bytes: Vec::new(), is_open: true, handle: Arc::new(Handle::of(stream)?) })
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next complete message out, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Nonsense> {
        let Some((kind, text)) = message_at(&self.bytes)? else {
            return Ok(None);
        };
        let text = text.to_vec();
        self.bytes.drain(..HEADER_BYTES + text.len());
        Ok(Some((kind, text)))
    }

    /// The text of the first complete message of a kind, which stays.
    pub(super) fn first(&self, wanted: Kind) -> Result<Option<&[u8]>, Nonsense> {
        let mut bytes = &self.bytes[..];
        while let Some((kind, text)) = message_at(bytes)? {
            if kind == wanted {
                return Ok(Some(text));
            }
            bytes = &bytes[HEADER_BYTES + text.len()..];
        }
        Ok(None)
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.first(kind).is_ok_and(|text| text.is_some())
    }
}

/// The message that begins here, if all of it is there.
fn message_at(bytes: &[u8]) -> Result<Option<(Kind, &[u8])>, Nonsense> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let number = |at: usize| {
        let bytes = header[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    if number(SUMMED_BYTES) != crc32c::crc32c(&header[..SUMMED_BYTES]) {
        return Err(Nonsense);
    }
    let kind = Kind::of(header[0]).ok_or(Nonsense)?;
    let (len, sum) = (number(1) as usize, number(5));
    if len > MESSAGE_BYTES_MAX {
        return Err(Nonsense);
    }
    let Some(text) = bytes.get(HEADER_BYTES..HEADER_BYTES + len) else {
        return Ok(None);
    };
    if crc32c::crc32c(text) == sum { Ok(Some((kind, text))) } else { Err(Nonsense) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_connect::platform::net::UnixStream;

    fn inbox() -> Inbox {
        let (near, _far) = UnixStream::pair().unwrap();
        Inbox::new(&Stream::Unix(near)).unwrap()
    }

    #[test]
    fn a_message_comes_whole_and_one_that_was_changed_does_not() {
        let text = br#"{"rank":3}"#;
        let message = message(Kind::Failure, text);
        let mut inbox = inbox();
        inbox.feed(&message[..message.len() - 1]);
        assert!(inbox.next().unwrap().is_none());
        inbox.feed(&message[message.len() - 1..]);
        let (kind, found) = inbox.next().unwrap().unwrap();
        assert_eq!((kind, &found[..]), (Kind::Failure, &text[..]));
        for bit in 0..message.len() * 8 {
            let mut changed = message.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let mut inbox = self::inbox();
            inbox.feed(&changed);
            assert!(inbox.next().is_err(), "bit {bit}");
        }
    }
}
