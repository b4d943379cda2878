//! Frames out of a byte stream: where they begin, where they end, and the memory they lie in.
//!
//! Pure: it reads from whatever implements [`Read`] and knows nothing of sockets or waiting. One read
//! asks for the rest of the frame that is arriving and for the beginning of the next one, so a stream
//! of large frames costs one system call per frame and copies nothing, and a short frame arrives with
//! its header in one call. What a read brings beyond the end of a short frame (the spill) is moved to
//! the slot of the next.
//!
//! A frame that arrives may be diverted: what has come of its payload is copied to where the payload is
//! to end, the rest is read to there, and the frame never takes a slot.
//!
//! Nothing here trusts the bytes: a frame's length is checked against its slot before it is used.

use std::io::{self, IoSliceMut, Read};

use bonfire_plan::wire::{self, HEADER_BYTES, WireError};

/// Bytes that a read asks for behind a header before it is known how long the frame is: all of a
/// small message, and little enough that moving what belongs to the next frame costs less than the
/// system call that it spares.
const AHEAD_BYTES: usize = 16 << 10;

/// The stream carries something that is not a frame of this link.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Not a header.
    #[error(transparent)]
    Header(#[from] WireError),
    /// More payload than the ranks agreed on at set-up.
    #[error("a frame of {frame_bytes} bytes came, where {slot_bytes} were agreed")]
    TooLong {
        frame_bytes: usize,
        slot_bytes: usize,
    },
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A queue of frames from one peer, with a fixed number of slots.
#[derive(Debug)]
pub(crate) struct Inbox {
    slots: Box<[Slot]>,
    /// Complete frames not yet released; the oldest is at `oldest`.
    frames: usize,
    oldest: usize,
    /// Bytes that lie in the slot of the frame that is arriving; when every slot holds a complete
    /// frame, bytes that lie behind the newest one.
    arrived: usize,
    /// Where the payload of the frame that is arriving goes, if not to a slot.
    diversion: Option<Diversion>,
}

/// A payload that is read to a place outside the slots. What arrived of the stream behind it lies
/// where the next frame begins.
#[derive(Clone, Copy, Debug)]
struct Diversion {
    payload_bytes: usize,
    placed_bytes: usize,
}

/// Room for a frame. Words, so that payloads are aligned for every element type.
#[derive(Debug)]
struct Slot {
    words: Box<[u64]>,
    /// Length of the complete frame in it.
    frame_bytes: usize,
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(size_of::<u64>()));

impl Slot {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }
}

impl Inbox {
    /// Room for `slots` frames of up to `chunk_bytes` of payload.
    pub(crate) fn new(slots: usize, chunk_bytes: usize) -> Self {
        assert!(
            slots >= 2,
            "the spill of one slot needs another, got {slots}"
        );
        let words = (HEADER_BYTES + chunk_bytes).div_ceil(size_of::<u64>());
        let slot = |_| Slot {
            words: vec![0; words].into_boxed_slice(),
            frame_bytes: 0,
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            frames: 0,
            oldest: 0,
            arrived: 0,
            diversion: None,
        }
    }

    /// The oldest complete frame, header and payload.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        let slot = &self.slots[self.oldest];
        (self.frames > 0).then(|| &slot.bytes()[..slot.frame_bytes])
    }

    /// Gives the slot of the oldest frame back. What lay behind the newest one may become a frame
    /// by this.
    ///
    /// # Panics
    /// If there is no frame.
    pub(crate) fn release(&mut self) -> Result<(), FrameError> {
        assert!(self.frames > 0, "release without a frame");
        let was_full = self.is_full();
        self.frames -= 1;
        let released = self.oldest;
        self.oldest = (self.oldest + 1) % self.slots.len();
        if self.frames == 0 && self.arrived <= HEADER_BYTES {
            // The next frame gets the same slot, which is still in a cache.
            let next = self.oldest;
            self.oldest = released;
            if self.arrived > 0 {
                self.spill(next, 0..self.arrived);
            }
        }
        if was_full && self.arrived > 0 {
            let newest = self.index(self.frames - 1);
            let start = self.slots[newest].frame_bytes;
            self.spill(newest, start..start + self.arrived);
            self.settle()?;
        }
        Ok(())
    }

    /// Whether every slot holds a complete frame.
    pub(crate) fn is_full(&self) -> bool {
        self.frames == self.slots.len()
    }

    /// What is there of a frame that is still arriving, from its header on, if its header is there
    /// and no frame comes before it.
    pub(crate) fn arriving(&self) -> Option<&[u8]> {
        let next = self.frames == 0 && self.diversion.is_none() && self.arrived >= HEADER_BYTES;
        next.then(|| &self.slots[self.oldest].bytes()[..self.arrived])
    }

    /// The payload of the frame that is [`arriving`](Self::arriving) goes to `target` from now on:
    /// what is there is copied, the rest is for [`fill_diverted`](Self::fill_diverted).
    ///
    /// # Panics
    /// If no frame is arriving or `target` is not as long as its payload.
    pub(crate) fn divert(&mut self, target: &mut [u8]) {
        let frame = self.arriving().expect("only a frame is diverted");
        let payload_bytes = wire::payload_bytes(frame).expect("its header was read");
        assert_eq!(
            payload_bytes as usize,
            target.len(),
            "payload and target differ in length"
        );
        let placed = &frame[HEADER_BYTES..];
        let placed_bytes = placed.len();
        target[..placed_bytes].copy_from_slice(placed);
        self.arrived = 0;
        self.diversion = Some(Diversion {
            payload_bytes: target.len(),
            placed_bytes,
        });
    }

    /// Whether a payload is being read to a place outside: [`fill`](Self::fill) must wait.
    pub(crate) fn is_diverting(&self) -> bool {
        self.diversion.is_some()
    }

    /// Reads once, to the `target` of [`divert`](Self::divert); the number of bytes that came. 0 is
    /// the end of the stream. The diversion ends with the payload.
    ///
    /// # Panics
    /// If nothing is diverted, or to a target of another length.
    pub(crate) fn fill_diverted(
        &mut self,
        source: &mut impl Read,
        target: &mut [u8],
    ) -> Result<usize, InboxError> {
        let diversion = self.diversion.as_mut().expect("a frame was diverted");
        assert_eq!(
            diversion.payload_bytes,
            target.len(),
            "not the target that the frame was diverted to"
        );
        let rest = &mut target[diversion.placed_bytes..];
        let rest_bytes = rest.len();
        let ahead = read_ahead(self.slots[self.oldest].bytes_mut(), diversion.payload_bytes);
        let read = source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?;
        if read < rest_bytes {
            diversion.placed_bytes += read;
            return Ok(read);
        }
        self.diversion = None;
        self.arrived = read - rest_bytes;
        self.settle()?;
        Ok(read)
    }

    /// Reads once; the number of bytes that came. 0 is the end of the stream.
    ///
    /// # Panics
    /// If the inbox is full, or a frame is being diverted.
    pub(crate) fn fill(&mut self, source: &mut impl Read) -> Result<usize, InboxError> {
        assert!(!self.is_full(), "no slot for what would be read");
        assert!(!self.is_diverting(), "the bytes belong to another place");
        let arrived = self.arrived;
        let index = self.index(self.frames);
        let needed = self.needed(index)?;
        let next = (self.frames + 1 < self.slots.len()).then(|| self.index(self.frames + 1));
        let read = match (needed, next) {
            (Some(needed), Some(next)) => {
                let [slot, next] = self
                    .slots
                    .get_disjoint_mut([index, next])
                    .expect("two slots of a ring of at least two");
                let ahead = read_ahead(next.bytes_mut(), needed - HEADER_BYTES);
                let rest = &mut slot.bytes_mut()[arrived..needed];
                let rest_bytes = rest.len();
                let read =
                    source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?;
                if read > rest_bytes {
                    self.finish(index, needed);
                    self.arrived = read - rest_bytes;
                    self.settle()?;
                    return Ok(read);
                }
                read
            }
            (Some(needed), None) => {
                source.read(&mut self.slots[index].bytes_mut()[arrived..needed])?
            }
            (None, _) => source.read(window(self.slots[index].bytes_mut(), arrived))?,
        };
        self.arrived += read;
        self.settle()?;
        Ok(read)
    }

    /// Slot of frame number `number`, counted from the oldest.
    fn index(&self, number: usize) -> usize {
        (self.oldest + number) % self.slots.len()
    }

    /// Length of the frame whose beginning lies in slot `index`, once its header has arrived.
    fn needed(&self, index: usize) -> Result<Option<usize>, FrameError> {
        if self.arrived < HEADER_BYTES {
            return Ok(None);
        }
        let bytes = self.slots[index].bytes();
        let frame_bytes = HEADER_BYTES + wire::payload_bytes(bytes)? as usize;
        if frame_bytes > bytes.len() {
            return Err(FrameError::TooLong {
                frame_bytes,
                slot_bytes: bytes.len(),
            });
        }
        Ok(Some(frame_bytes))
    }

    /// Counts the frames that are complete and moves what lies behind each to the next slot.
    fn settle(&mut self) -> Result<(), FrameError> {
        while !self.is_full() {
            let index = self.index(self.frames);
            let Some(needed) = self.needed(index)? else {
                return Ok(());
            };
            if self.arrived < needed {
                return Ok(());
            }
            let end = self.arrived;
            self.finish(index, needed);
            self.arrived = end - needed;
            if self.arrived > 0 && !self.is_full() {
                self.spill(index, needed..end);
            }
        }
        Ok(())
    }

    /// Slot `index` holds a frame of `frame_bytes` from now on.
    fn finish(&mut self, index: usize, frame_bytes: usize) {
        self.slots[index].frame_bytes = frame_bytes;
        self.frames += 1;
    }

    /// Moves a range of slot `from` to the beginning of the slot of the next frame.
    fn spill(&mut self, from: usize, range: std::ops::Range<usize>) {
        let to = self.index(self.frames);
        let [from, to] = self
            .slots
            .get_disjoint_mut([from, to])
            .expect("the slot of the next frame is another one");
        to.bytes_mut()[..range.len()].copy_from_slice(&from.bytes()[range]);
    }
}

/// Where what lies behind a payload of `payload_bytes` goes. What follows a large frame is mostly
/// another: then only its header is asked for, so that its payload need not be moved.
fn read_ahead(slot: &mut [u8], payload_bytes: usize) -> &mut [u8] {
    if payload_bytes >= AHEAD_BYTES {
        &mut slot[..HEADER_BYTES]
    } else {
        window(slot, 0)
    }
}

/// Where a read goes while the length of the frame is not known: behind the `arrived` bytes, up to
/// the read-ahead. Never empty, because a slot has room for a header and the header is not complete.
fn window(slot: &mut [u8], arrived: usize) -> &mut [u8] {
    let end = slot.len().min(HEADER_BYTES + AHEAD_BYTES);
    &mut slot[arrived..end]
}

// The fuzz target includes this file, and its folder is not known there.
#[cfg(test)]
#[path = "inbox/tests.rs"]
mod tests;
