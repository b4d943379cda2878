//! A control connection of a rank that is still joining.
//!
//! It is read from the moment when it is made: a peer that is lost, or that says why the group cannot be, ends the
//! joining at once and not at its deadline. What else is said stays in the inbox until the group is there.
//!
//! Between ranks that share memory nothing is read before they have exchanged descriptors, which
//! are sent on this connection and would be lost.

use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use super::line::{Inbox, Kind, Nonsense, Peer};
use super::{NONSENSE, decode, encode, suspect};
use crate::health::failure::Failure;
use crate::health::reports::RankReport;
use bonfire_connect::platform::net::Handle;
use bonfire_connect::secure::stream::Stream;

/// Whether a connection is read while its rank joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Now,
    /// Not read: descriptors come first.
    Later,
}

#[derive(Debug)]
pub(crate) struct Early {
    pub(super) peer: Peer,
    pub(super) inbox: Inbox,
    reading: Reading,
}

impl Early {
    pub(crate) fn new(rank: Rank, stream: Stream, reading: Reading) -> io::Result<Self> {
        let inbox = Inbox::new(&stream)?;
        if reading == Reading::Now {
            stream.set_nonblocking()?;
            stream.notice_silence()?;
        }
        Ok(Self { peer: Peer::new(rank, stream), inbox, reading })
    }

    pub(crate) fn rank(&self) -> Rank {
        self.peer.rank
    }

    /// To wait for news of it; nothing if it is not read yet.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        let is_read = self.reading == Reading::Now && self.inbox.is_open;
        is_read.then_some(&self.inbox.handle)
    }

    /// Why this rank need not be waited for, if the system says that its process is stopped.
    pub(crate) fn stopped(&self, silence: Duration) -> Option<Failure> {
        let cause = suspect::cause_from_the_start(self.peer.far_end(), silence)?;
        let rank = self.peer.rank;
        Some(Failure::Peer { rank, cause })
    }

    /// Says one byte where descriptors are exchanged.
    pub(crate) fn write_byte(&self, word: u8) -> io::Result<()> {
        self.peer.write_byte(word)
    }

    /// Takes a byte that has been seen to be there.
    pub(crate) fn read_byte(&self) -> io::Result<u8> {
        let mut word = [0];
        match self.peer.read(&mut word)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(word[0]),
        }
    }

    /// To wait for descriptors, which come before anything is read.
    pub(crate) fn raw_handle(&self) -> &Handle {
        &self.inbox.handle
    }

    /// Uses the connection for something else than messages.
    pub(crate) fn with_stream<R>(&self, action: impl FnOnce(&Stream) -> R) -> R {
        self.peer.with_stream(action)
    }

    /// Reads what has come; why the group cannot be, if that follows.
    pub(crate) fn receive(&mut self) -> Option<Failure> {
        let mut buffer = [0; 4096];
        while self.handle().is_some() {
            let end = match self.peer.read(&mut buffer) {
                Ok(0) => "its process ended while the ranks were connecting".to_owned(),
                Ok(count) => {
                    self.inbox.feed(&buffer[..count]);
                    match self.interpret() {
                        Ok(None) => continue,
                        Ok(Some(failure)) => return Some(failure),
                        Err(Nonsense) => NONSENSE.to_owned(),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => format!("connection lost: {error}"),
            };
            self.inbox.is_open = false;
            let rank = self.peer.rank;
            let has_left = end != NONSENSE && self.inbox.has(Kind::Farewell);
            return (!has_left).then_some(Failure::Peer { rank, cause: end });
        }
        None
    }

    fn interpret(&self) -> Result<Option<Failure>, Nonsense> {
        match self.inbox.first(Kind::Failure)? {
            Some(text) => decode(text).map(Some),
            None => Ok(None),
        }
    }

    /// Says whom this rank waits for, to one that may have joined already and wait for this one.
    pub(crate) fn send_missing(&self, report: &RankReport) {
        self.send(Kind::Report, &encode(report));
    }

    /// Says that this rank waits for nobody any more.
    pub(crate) fn send_joined(&self) {
        self.send(Kind::Joined, &[]);
    }

    /// Says why this rank gives up: it is not to be taken for the one that failed.
    pub(crate) fn send_failure(&self, failure: &Failure) {
        self.send(Kind::Failure, &encode(failure));
    }

    fn send(&self, kind: Kind, text: &[u8]) {
        if self.reading == Reading::Now {
            self.peer.send(kind, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_LOOK;
    use super::*;
    use bonfire_connect::platform::net::UnixStream;
    use bonfire_connect::platform::{clock, thread};

    /// A connection to rank 3, and the other end of it.
    fn early() -> (Early, Peer) {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let early = Early::new(Rank::new(3), Stream::Unix(near), Reading::Now).unwrap();
        (early, Peer::new(Rank::new(1), Stream::Unix(far)))
    }

    /// What is heard when the other end is closed, which a process that starts beside the test may
    /// still have for a moment.
    fn await_end(early: &mut Early) -> Option<Failure> {
        let started = clock::now();
        loop {
            let failure = early.receive();
            if failure.is_some() || early.handle().is_none() {
                return failure;
            }
            assert!(clock::since(started) < Duration::from_secs(60), "no end comes");
            thread::sleep(ANSWER_LOOK);
        }
    }

    #[test]
    fn a_peer_that_is_lost_while_this_rank_joins_is_seen() {
        let (mut early, far) = early();
        assert_eq!(early.receive(), None);
        far.send(Kind::Heartbeat, b"{}");
        assert_eq!(early.receive(), None);
        // It does not read this.
        early.send_joined();
        drop(far);
        let Some(Failure::Peer { rank, cause }) = await_end(&mut early) else {
            panic!("nothing was seen");
        };
        assert_eq!(rank, Rank::new(3));
        assert!(cause.contains("ended while the ranks were connecting"), "{cause}");
        assert!(early.handle().is_none());
        // What it said before is still there for the group.
        assert!(early.inbox.has(Kind::Heartbeat));
    }

    #[test]
    fn whoever_says_why_it_leaves_is_not_blamed() {
        let (mut early, far) = early();
        let failure = Failure::Peer { rank: Rank::new(0), cause: "it fell".to_owned() };
        far.send(Kind::Report, &encode(&RankReport::of_joining(Rank::new(3), vec![Rank::new(0)])));
        far.send(Kind::Failure, &encode(&failure));
        drop(far);
        assert_eq!(early.receive(), Some(failure));
    }

    #[test]
    fn whoever_leaves_in_peace_is_not_blamed() {
        let (mut early, far) = early();
        far.send(Kind::Farewell, &[]);
        drop(far);
        assert_eq!(await_end(&mut early), None);
        assert!(early.handle().is_none());
    }

    #[test]
    fn between_ranks_that_share_memory_nothing_is_read() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut early = Early::new(Rank::new(3), Stream::Unix(near), Reading::Later).unwrap();
        drop(far);
        assert_eq!(early.receive(), None);
    }
}
