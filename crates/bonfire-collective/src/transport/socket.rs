//! Frames through a byte stream, without a thread of their own: whoever waits for a link moves the
//! bytes of all of them, so two ranks that send to each other at once cannot block each other.

use std::io::{self, IoSlice, Read, Write};

use bonfire_plan::wire::{self, HEADER_BYTES};

use super::{LinkError, SLOTS};
use crate::stream::Stream;

/// Both directions between this rank and one peer.
#[derive(Debug)]
pub(crate) struct SocketLink {
    pub(super) stream: Stream,
    slots: Vec<Slot>,
    /// Complete frames not yet released; the oldest is at `oldest`.
    frames: usize,
    oldest: usize,
    /// Bytes of the next frame that have arrived.
    arrived: usize,
    /// No more bytes will come.
    ended: bool,
}

/// Room for a frame. Words, so that payloads are aligned for every element type.
#[derive(Debug)]
struct Slot {
    words: Vec<u64>,
    frame_bytes: usize,
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(size_of::<u64>()));

impl SocketLink {
    /// A link whose frames carry up to `chunk_bytes` of payload.
    pub(crate) fn new(stream: Stream, chunk_bytes: usize) -> io::Result<Self> {
        if let Stream::Tcp(stream) = &stream {
            stream.set_nodelay(true)?;
        }
        stream.set_nonblocking()?;
        let words = (HEADER_BYTES + chunk_bytes).div_ceil(size_of::<u64>());
        let slots = (0..SLOTS)
            .map(|_| Slot {
                words: vec![0; words],
                frame_bytes: 0,
            })
            .collect();
        Ok(Self {
            stream,
            slots,
            frames: 0,
            oldest: 0,
            arrived: 0,
            ended: false,
        })
    }

    /// The oldest complete frame.
    pub(super) fn front(&self) -> Option<&[u8]> {
        let slot = &self.slots[self.oldest];
        let bytes: &[u8] = bytemuck::cast_slice(&slot.words);
        (self.frames > 0).then(|| &bytes[..slot.frame_bytes])
    }

    pub(super) fn release(&mut self) {
        assert!(self.frames > 0, "release without a frame");
        self.frames -= 1;
        self.oldest = (self.oldest + 1) % self.slots.len();
    }

    /// Whether there is room for another frame, and hope for one.
    pub(super) fn wants_bytes(&self) -> bool {
        self.frames < self.slots.len() && !self.ended
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads what is there, up to the free slots. Never blocks.
    pub(super) fn receive(&mut self) -> Result<(), LinkError> {
        while self.wants_bytes() {
            let index = (self.oldest + self.frames) % self.slots.len();
            let slot = &mut self.slots[index];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut slot.words);
            let needed = if self.arrived < HEADER_BYTES {
                HEADER_BYTES
            } else {
                frame_bytes(bytes, &self.stream)?
            };
            if self.arrived == needed {
                slot.frame_bytes = needed;
                self.frames += 1;
                self.arrived = 0;
                continue;
            }
            match self.stream.read(&mut bytes[self.arrived..needed]) {
                Ok(0) => self.ended = true,
                Ok(len) => self.arrived += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_end(&error) => self.ended = true,
                Err(error) => return Err(LinkError::Broken(error.to_string())),
            }
        }
        Ok(())
    }

    /// Sends what the kernel takes of the frame from its byte `sent` on; the new `sent`. Never blocks.
    pub(super) fn send(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
    ) -> Result<usize, LinkError> {
        let total = HEADER_BYTES + payload.len();
        let mut sent = sent;
        while sent < total {
            let written = if sent < HEADER_BYTES {
                let parts = [IoSlice::new(&header[sent..]), IoSlice::new(payload)];
                self.stream.write_vectored(&parts)
            } else {
                self.stream.write(&payload[sent - HEADER_BYTES..])
            };
            match written {
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_end(&error) => return Err(LinkError::Ended),
                Err(error) => return Err(LinkError::Broken(error.to_string())),
            }
        }
        Ok(sent)
    }
}

/// Length of the frame whose header has arrived in `bytes`, checked against the slot.
fn frame_bytes(bytes: &[u8], stream: &Stream) -> Result<usize, LinkError> {
    let payload =
        wire::payload_bytes(bytes).map_err(|error| LinkError::Broken(error.to_string()))?;
    let total = HEADER_BYTES + payload as usize;
    if total > bytes.len() {
        let room = bytes.len();
        let what = format!("a frame of {total} bytes on {stream:?}, where {room} were agreed");
        return Err(LinkError::Broken(what));
    }
    Ok(total)
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}
