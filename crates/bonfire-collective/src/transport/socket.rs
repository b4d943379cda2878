//! Frames through a byte stream: a thread that waits for a link moves the bytes of all of them, so
//! two ranks that send to each other at once cannot block each other. Streams but the first may
//! have a thread each that calls the kernel.

use std::io::{self, IoSlice, Write};

use bonfire_plan::Rank;

use super::inbox::{FrameError, Inbox, InboxError};
use super::stripes::Stripes;
use super::wire::{self, AGREED_BYTES, HEADER_BYTES, WireError};
use super::{Frame, LinkError, SLOTS};
use crate::options::STREAMS_MAX;
use bonfire_connect::carrier::Carrier;
use bonfire_connect::secure::stream::Stream;

/// Both directions between this rank and one peer, over one stream or several.
///
/// The end of any of them is the end of the link, once it is needed: a peer that leaves in peace
/// closes all of them, and what the others still carry must be read before.
#[derive(Debug)]
pub(crate) struct SocketLink {
    /// In the order that both ends know.
    flows: Box<[Flow]>,
    inbox: Inbox,
    ended: bool,
    /// What is wrong with the bytes that came. Nothing behind them is read.
    fault: Option<Fault>,
    /// `Some` where frames carry checksums.
    sealing: Option<Sealing>,
}

/// Why a stream cannot be understood any more.
#[derive(Clone, Debug)]
enum Fault {
    /// A frame was changed on the way, of this operation if that is known.
    Changed(Option<u64>),
    Other(String),
}

/// The header of the frame that is being put, with the frame's sums.
#[derive(Debug)]
struct Sealing {
    header: [u8; HEADER_BYTES],
    /// Whether it is that of the frame that is being put.
    is_made: bool,
}

/// The frame that a rank's next step is about. Only such a frame is used before all of it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due<'a> {
    pub(crate) agreed: &'a [u8; AGREED_BYTES],
    pub(crate) payload_bytes: usize,
}

#[derive(Debug)]
struct Flow {
    carrier: Carrier,
    /// Whether the last read left something behind, or news has come since. Without this flag the
    /// kernel's events, which report changes only, would have to be asked again for what they said.
    readable: bool,
    /// What is sent of its part of the frame that is being put.
    sent: usize,
    /// Whether the last write would have had to wait.
    blocked: bool,
}

/// How far a put, or a wait for a frame, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// This many more bytes have gone or come, and there are more.
    Bytes(usize),
    /// All are sent, or what is awaited is here, though not in a slot.
    Done,
}

impl SocketLink {
    /// A link over `streams`, in an order that both ends know, whose frames carry up to `chunk_bytes`
    /// of payload. `has_threads` gives each stream but the first a thread; the first carries what is short.
    /// Panics if there is no stream, or more than [`STREAMS_MAX`].
    pub(crate) fn new(
        streams: Vec<Stream>,
        chunk_bytes: usize,
        has_threads: bool,
    ) -> io::Result<Self> {
        assert!(
            (1..=STREAMS_MAX).contains(&streams.len()),
            "1 to {STREAMS_MAX} streams, got {}",
            streams.len()
        );
        let mut flows = Vec::with_capacity(streams.len());
        for (index, stream) in streams.into_iter().enumerate() {
            stream.tune_for_frames()?;
            let carrier = if has_threads && index > 0 {
                Carrier::relayed(stream)?
            } else {
                Carrier::own(stream)?
            };
            flows.push(Flow { carrier, readable: true, sent: 0, blocked: false });
        }
        Ok(Self {
            inbox: Inbox::new(SLOTS as usize, chunk_bytes, flows.len()),
            flows: flows.into_boxed_slice(),
            ended: false,
            fault: None,
            sealing: None,
        })
    }

    /// The same link, whose frames carry checksums in both directions.
    pub(crate) fn sealed(self) -> Self {
        Self {
            inbox: self.inbox.sealed(),
            sealing: Some(Sealing { header: [0; HEADER_BYTES], is_made: false }),
            ..self
        }
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &Carrier> {
        self.flows.iter().map(|flow| &flow.carrier)
    }

    /// The streams that had no room when they were last written to, and do not report when they have.
    pub(super) fn blocked_streams(&self) -> impl Iterator<Item = &Carrier> {
        let blocked = self.flows.iter().filter(|flow| flow.blocked);
        let silent = blocked.filter(|flow| !flow.carrier.reports_room());
        silent.map(|flow| &flow.carrier)
    }

    pub(super) fn front(&self) -> Option<Frame<'_>> {
        let (header, payload) = self.inbox.front()?.split_at(HEADER_BYTES);
        Some(Frame::new([header, &[]], payload))
    }

    pub(super) fn release(&mut self) {
        if let Err(error) = self.inbox.release() {
            self.fault = Some(Fault::of(&error));
        }
    }

    fn is_sound(&self) -> bool {
        !self.ended && self.fault.is_none()
    }

    /// Whether a read would bring something that there is room for.
    pub(super) fn has_news(&self) -> bool {
        if self.inbox.is_diverting() || !self.is_sound() {
            return false;
        }
        let mut flows = self.flows.iter().enumerate();
        flows.any(|(index, flow)| flow.readable && self.inbox.wants(index))
    }

    /// The kernel, or its thread, says that bytes or the end have come over a stream, or that there is room.
    pub(super) fn hear_of_news(&mut self, stream: usize) {
        self.flows[stream].readable = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the stream can still be understood.
    pub(super) fn check(&self, peer: Rank) -> Result<(), LinkError> {
        match &self.fault {
            Some(Fault::Changed(seq)) => Err(LinkError::Changed { rank: peer, seq: *seq }),
            Some(Fault::Other(cause)) => {
                Err(LinkError::Broken { rank: peer, cause: cause.clone() })
            }
            None => Ok(()),
        }
    }

    /// Reads once from each stream, if there is room; the number of bytes that came. Never blocks.
    pub(super) fn receive(&mut self) -> usize {
        if self.inbox.is_diverting() {
            return 0;
        }
        let mut came = 0;
        for index in 0..self.flows.len() {
            if self.is_sound() && self.inbox.wants(index) {
                let read = self.inbox.fill(index, &mut self.flows[index].carrier);
                came += self.note(index, read);
            }
        }
        came
    }

    /// As [`receive`](Self::receive), but the payload of the next frame goes to `target` if it is
    /// the frame that is due.
    pub(super) fn receive_to(&mut self, due: &Due<'_>, target: &mut [u8]) -> Progress {
        assert_eq!(due.payload_bytes, target.len(), "another frame is due");
        if !self.inbox.is_diverting() {
            if self.arrived(due).is_none() {
                return Progress::Bytes(self.receive());
            }
            self.inbox.divert(target);
        }
        let mut came = 0;
        for index in 0..self.flows.len() {
            if self.is_sound() && self.inbox.wants(index) {
                let carrier = &mut self.flows[index].carrier;
                let read = self.inbox.fill_diverted(index, carrier, target);
                came += self.note(index, read);
                if !self.inbox.is_diverting() && self.fault.is_none() {
                    return Progress::Done;
                }
            }
        }
        Progress::Bytes(came)
    }

    /// What is there of the payload of the next frame, if that is the frame that is due and more of it is to come.
    pub(super) fn arrived(&self, due: &Due<'_>) -> Option<&[u8]> {
        if self.fault.is_some() {
            return None;
        }
        let frame = self.inbox.arriving()?;
        let payload_bytes = wire::payload_bytes(frame).ok()?;
        let is_due = frame[..AGREED_BYTES] == *due.agreed;
        (is_due && payload_bytes as usize == due.payload_bytes).then(|| &frame[HEADER_BYTES..])
    }

    /// Remembers what a read says about the stream; the number of bytes that came.
    fn note(&mut self, stream: usize, read: Result<usize, InboxError>) -> usize {
        match read {
            Ok(0) => self.ended = true,
            Ok(len) => return len,
            Err(InboxError::Frame(error)) => self.fault = Some(Fault::of(&error)),
            Err(InboxError::Io(error)) => match error.kind() {
                io::ErrorKind::WouldBlock => self.flows[stream].readable = false,
                io::ErrorKind::Interrupted => {}
                _ if is_end(&error) => self.ended = true,
                _ => self.fault = Some(Fault::Other(error.to_string())),
            },
        }
        0
    }

    /// Sends what the kernel takes of the rest of the frame, in one call per stream. Never blocks.
    /// To be called with the same frame until all of it is sent.
    pub(super) fn send(
        &mut self,
        peer: Rank,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> Result<Progress, LinkError> {
        let header = match &mut self.sealing {
            Some(sealing) => sealing.seal(header, payload),
            None => header,
        };
        let stripes = Stripes::of(payload.len(), self.flows.len());
        let (mut went, mut is_whole) = (0, true);
        for (index, flow) in self.flows[..stripes.count()].iter_mut().enumerate() {
            let head: &[u8] = if index == 0 { header } else { &[] };
            let piece = &payload[stripes.piece(index)];
            went += flow.send(peer, head, piece)?;
            is_whole &= flow.sent == head.len() + piece.len() && !flow.blocked;
        }
        if !is_whole {
            return Ok(Progress::Bytes(went));
        }
        self.flows.iter_mut().for_each(|flow| flow.sent = 0);
        if let Some(sealing) = &mut self.sealing {
            sealing.is_made = false;
        }
        Ok(Progress::Done)
    }
}

impl Fault {
    fn of(error: &FrameError) -> Self {
        match error {
            FrameError::Changed { seq } => Self::Changed(Some(*seq)),
            FrameError::Header(WireError::Changed) => Self::Changed(None),
            other => Self::Other(other.to_string()),
        }
    }
}

impl Sealing {
    /// The header with the frame's sums, which are made once for each frame.
    fn seal(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> &[u8; HEADER_BYTES] {
        if !self.is_made {
            self.header = *header;
            wire::seal(&mut self.header, payload);
            self.is_made = true;
        }
        &self.header
    }
}

impl Flow {
    /// Sends what the kernel takes of the rest of `head` and `piece`, in one call; how much it took.
    fn send(&mut self, peer: Rank, head: &[u8], piece: &[u8]) -> Result<usize, LinkError> {
        self.blocked = false;
        let sent = self.sent;
        let total = head.len() + piece.len();
        let mut went = 0;
        let mut written = if sent < head.len() {
            let parts = [IoSlice::new(&head[sent..]), IoSlice::new(piece)];
            self.carrier.write_vectored(&parts)
        } else if sent < total {
            self.carrier.write(&piece[sent - head.len()..])
        } else {
            Ok(0)
        };
        if let Ok(len) = written {
            went = len;
            self.sent += len;
            // An encrypted stream may hold the end of it back, and so may a thread.
            if self.sent == total {
                written = self.carrier.flush().map(|()| len);
            }
        }
        match written {
            Ok(len) => Ok(len),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {
                    self.blocked = true;
                    Ok(went)
                }
                _ if is_end(&error) => Err(LinkError::Ended),
                _ => Err(LinkError::Broken { rank: peer, cause: error.to_string() }),
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

#[cfg(test)]
mod tests;
