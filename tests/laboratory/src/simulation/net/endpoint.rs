//! One end of a connection, and what is under way to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Bytes(Vec<u8>),
    /// No more bytes will come.
    End,
    /// The connection does not exist any more.
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Open,
    Refused,
    /// The listener has no room for it.
    Full,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) process: usize,
    pub(crate) host: usize,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) is_unix: bool,
    pub(crate) phase: Phase,
    /// The other end, once there is one.
    pub(crate) peer: Option<usize>,
    pub(crate) inbox: VecDeque<u8>,
    /// What is on its way here, in order.
    pub(crate) pipe: VecDeque<Segment>,
    pub(crate) piped_bytes: usize,
    /// When the last of it arrives.
    pub(crate) last_arrival: Duration,
    pub(crate) has_ended: bool,
    pub(crate) error: Option<ErrorKind>,
    pub(crate) is_read_shut: bool,
    pub(crate) is_write_shut: bool,
    pub(crate) is_closed: bool,
    /// The number of arrivals so far.
    pub(crate) news: u64,
    pub(crate) blocks: bool,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) write_timeout: Option<Duration>,
    /// How long the other host may be silent.
    pub(crate) silence_max: Option<Duration>,
}

impl Endpoint {
    pub(crate) fn new(process: usize, host: usize, addresses: [SocketAddr; 2]) -> Self {
        Self {
            process,
            host,
            local: addresses[0],
            remote: addresses[1],
            is_unix: false,
            phase: Phase::Connecting,
            peer: None,
            inbox: VecDeque::new(),
            pipe: VecDeque::new(),
            piped_bytes: 0,
            last_arrival: Duration::ZERO,
            has_ended: false,
            error: None,
            is_read_shut: false,
            is_write_shut: false,
            is_closed: false,
            news: 0,
            blocks: true,
            read_timeout: None,
            write_timeout: None,
            silence_max: None,
        }
    }

    pub(crate) fn is_readable(&self) -> bool {
        !self.inbox.is_empty() || self.error.is_some() || self.has_ended || self.is_read_shut
    }

    /// What a read returns, if that is known: bytes that came before an end come first.
    pub(crate) fn read(&mut self, parts: &mut [io::IoSliceMut<'_>]) -> Option<io::Result<usize>> {
        if self.is_read_shut {
            return Some(Ok(0));
        }
        if self.inbox.is_empty() {
            return match self.error {
                Some(kind) => Some(Err(kind.into())),
                None => self.has_ended.then_some(Ok(0)),
            };
        }
        let mut read = 0;
        for part in parts {
            let count = part.len().min(self.inbox.len());
            for (place, byte) in part.iter_mut().zip(self.inbox.drain(..count)) {
                *place = byte;
            }
            read += count;
        }
        Some(Ok(read))
    }

    pub(crate) fn write_fault(&self) -> Option<ErrorKind> {
        match self.phase {
            Phase::Open if self.is_write_shut => Some(ErrorKind::BrokenPipe),
            Phase::Open => self.error,
            Phase::Connecting | Phase::Refused | Phase::Full => Some(ErrorKind::NotConnected),
        }
    }

    pub(crate) fn fail(&mut self, kind: ErrorKind) {
        self.error.get_or_insert(kind);
        self.pipe.clear();
        self.piped_bytes = 0;
        self.news += 1;
    }
}
