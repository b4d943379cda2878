//! Where the notes of other ranks arrive: a socket of this host, with a name that no file has and that is free
//! again when its process ends, however it ends.
//!
//! The system keeps the order of what one rank sends another, and loses nothing.

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use super::note::{BYTES, Note};

/// The longest that a call takes.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is delivered, or there is nobody to get it.
    Done,
    /// The other one has too many unread.
    Full,
}

pub(super) struct Mailbox {
    group: String,
    rank: usize,
    socket: UnixDatagram,
}

impl Mailbox {
    /// That of a rank of a group.
    ///
    /// # Errors
    /// If the rank has one already.
    pub(super) fn open(group: &str, rank: usize) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(&address(group, rank)?)?;
        socket.set_read_timeout(Some(PAUSE))?;
        socket.set_write_timeout(Some(PAUSE))?;
        Ok(Self { group: group.to_owned(), rank, socket })
    }

    pub(super) fn send(&self, peer: usize, note: Note) -> Sent {
        let sent = address(&self.group, peer)
            .and_then(|peer| self.socket.send_to_addr(&note.to_bytes(self.rank), &peer));
        match sent {
            Err(error) if is_pause(&error) => Sent::Full,
            _ => Sent::Done,
        }
    }

    /// The next note and who wrote it, if one comes soon.
    pub(super) fn receive(&self) -> Option<(usize, Note)> {
        let mut bytes = [0; BYTES];
        match self.socket.recv(&mut bytes) {
            Ok(BYTES) => Note::from_bytes(&bytes),
            _ => None,
        }
    }
}

fn address(group: &str, rank: usize) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{group} rank {rank}"))
}

fn is_pause(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
