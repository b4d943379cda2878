//! Frames through a byte stream, without a thread of their own: whoever waits for a link moves the
//! bytes of all of them, so two ranks that send to each other at once cannot block each other.

use std::io::{self, IoSlice, Write};

use bonfire_plan::Rank;
use bonfire_plan::wire::{self, AGREED_BYTES, HEADER_BYTES};

use super::inbox::{Inbox, InboxError};
use super::{Frame, LinkError, SLOTS};
use crate::stream::Stream;

/// Both directions between this rank and one peer.
#[derive(Debug)]
pub(crate) struct SocketLink {
    pub(super) stream: Stream,
    inbox: Inbox,
    /// Whether the last read left something behind, or news has come since. Without this flag the
    /// kernel's events, which tell of changes only, would have to be asked again for what they said.
    readable: bool,
    /// No more bytes will come.
    ended: bool,
    /// What is wrong with the bytes that came. Nothing behind them is read.
    fault: Option<String>,
}

/// The frame that a rank's next step is about. Only such a frame is used before all of it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    /// The beginning of its header.
    pub(crate) agreed: &'a [u8; AGREED_BYTES],
    pub(crate) payload_bytes: usize,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receipt {
    /// So many bytes.
    Bytes(usize),
    /// The rest of a payload that went to where it was wanted.
    Payload,
}

impl SocketLink {
    /// A link whose frames carry up to `chunk_bytes` of payload.
    pub(crate) fn new(stream: Stream, chunk_bytes: usize) -> io::Result<Self> {
        stream.tune_for_frames()?;
        stream.set_nonblocking()?;
        Ok(Self {
            stream,
            inbox: Inbox::new(SLOTS as usize, chunk_bytes),
            readable: true,
            ended: false,
            fault: None,
        })
    }

    /// The oldest complete frame.
    pub(super) fn front(&self) -> Option<Frame<'_>> {
        let (header, payload) = self.inbox.front()?.split_at(HEADER_BYTES);
        Some(Frame::new([header, &[]], payload))
    }

    pub(super) fn release(&mut self) {
        if let Err(error) = self.inbox.release() {
            self.fault = Some(error.to_string());
        }
    }

    /// Whether there is room for more bytes, and hope for some.
    fn wants_bytes(&self) -> bool {
        !self.inbox.is_full() && !self.inbox.is_diverting() && self.is_sound()
    }

    /// Whether more bytes may come.
    fn is_sound(&self) -> bool {
        !self.ended && self.fault.is_none()
    }

    /// Whether a read would bring something that there is room for.
    pub(super) fn has_news(&self) -> bool {
        self.readable && self.wants_bytes()
    }

    /// The kernel says that bytes, or the end, have come.
    pub(super) fn hear_of_news(&mut self) {
        self.readable = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the stream can still be understood.
    pub(super) fn check(&self, peer: Rank) -> Result<(), LinkError> {
        match &self.fault {
            Some(cause) => Err(LinkError::Broken {
                rank: peer,
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Reads once, if there is room; the number of bytes that came. Never blocks.
    pub(super) fn receive(&mut self) -> usize {
        if !self.wants_bytes() {
            return 0;
        }
        let read = self.inbox.fill(&mut self.stream);
        self.note(read)
    }

    /// As [`receive`](Self::receive), but the payload of the next frame goes to `target` if it is
    /// the frame that is due.
    pub(super) fn receive_to(&mut self, due: &Due<'_>, target: &mut [u8]) -> Receipt {
        assert_eq!(due.payload_bytes, target.len(), "another frame is due");
        if !self.inbox.is_diverting() {
            if self.arrived(due).is_none() {
                return Receipt::Bytes(self.receive());
            }
            self.inbox.divert(target);
        }
        if !self.is_sound() {
            return Receipt::Bytes(0);
        }
        let read = self.inbox.fill_diverted(&mut self.stream, target);
        let came = self.note(read);
        if self.inbox.is_diverting() {
            Receipt::Bytes(came)
        } else {
            Receipt::Payload
        }
    }

    /// What is there of the payload of the next frame, if that is the frame that is due and more of
    /// it is to come.
    pub(super) fn arrived(&self, due: &Due<'_>) -> Option<&[u8]> {
        let frame = self.inbox.arriving()?;
        let payload_bytes = wire::payload_bytes(frame).ok()?;
        let is_due = frame[..AGREED_BYTES] == *due.agreed;
        (is_due && payload_bytes as usize == due.payload_bytes).then(|| &frame[HEADER_BYTES..])
    }

    /// Remembers what a read says about the stream; the number of bytes that came.
    fn note(&mut self, read: Result<usize, InboxError>) -> usize {
        match read {
            Ok(0) => self.ended = true,
            Ok(len) => return len,
            Err(InboxError::Frame(error)) => self.fault = Some(error.to_string()),
            Err(InboxError::Io(error)) => match error.kind() {
                io::ErrorKind::WouldBlock => self.readable = false,
                io::ErrorKind::Interrupted => {}
                _ if is_end(&error) => self.ended = true,
                _ => self.fault = Some(error.to_string()),
            },
        }
        0
    }

    /// Sends what the kernel takes of the frame from its byte `sent` on, in one call; the new `sent`.
    /// Never blocks.
    pub(super) fn send(
        &mut self,
        peer: Rank,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
    ) -> Result<usize, LinkError> {
        let total = HEADER_BYTES + payload.len();
        assert!(sent < total, "{sent} of {total} bytes are sent already");
        let written = if sent < HEADER_BYTES {
            let parts = [IoSlice::new(&header[sent..]), IoSlice::new(payload)];
            self.stream.write_vectored(&parts)
        } else {
            self.stream.write(&payload[sent - HEADER_BYTES..])
        };
        match written {
            Ok(len) => Ok(sent + len),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(sent),
                _ if is_end(&error) => Err(LinkError::Ended),
                _ => Err(LinkError::Broken {
                    rank: peer,
                    cause: error.to_string(),
                }),
            },
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}
