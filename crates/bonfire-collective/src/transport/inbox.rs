//! Frames out of a byte stream: where they begin, where they end, and the memory they lie in.
//!
//! Pure: it reads from whatever implements [`Read`] and knows nothing of sockets or waiting. One read asks for the
//! rest of the frame that is arriving and for the beginning of the next one, so a stream of large frames costs one
//! system call per frame and copies nothing, and a short frame arrives with its header in one call. What a read
//! brings beyond the end of a short frame (the spill) is moved to the slot of the next.
//!
//! A frame that arrives may be diverted: what has come of its payload is copied to where the payload is
//! to end, the rest is read to there, and the frame never takes a slot.
//!
//! Where the link has several streams, the first carries the headers, and the others their pieces of
//! large payloads ([`Stripes`]). What belongs to the next frame stays where it is until all pieces of
//! the frame that is arriving are there, so there is only ever one such frame.
//!
//! Nothing here trusts the bytes: a frame's length is checked against its slot before it is used. Where
//! frames are sealed, a header is believed when its sum holds, and a frame is complete when the sum of its
//! payload does. Whoever uses a part of a payload before that finds out before the end of the frame.

use std::io::{self, IoSliceMut, Read};

use super::wire::{self, HEADER_BYTES, Seal, WireError};

use super::stripes::{PIECE_BYTES_MIN, Stripes};

/// Bytes that a read asks for behind a header before it is known how long the frame is: all of a small message, and
/// little enough that moving what belongs to the next frame costs less than the system call that it spares.
const AHEAD_BYTES: usize = 16 << 10;

// A frame in pieces, whose header is read first, does not end in what is read with it: nothing of the
// next frame comes before all its pieces are there.
const _: () = assert!(PIECE_BYTES_MIN >= AHEAD_BYTES);

/// The stream carries something that is not a frame of this link.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Bytes that are not a header.
    #[error(transparent)]
    Header(#[from] WireError),
    /// More payload than the ranks agreed on at set-up.
    #[error("a frame of {frame_bytes} bytes came, where {slot_bytes} were agreed")]
    TooLong { frame_bytes: usize, slot_bytes: usize },
    /// The payload is not as it was sealed.
    #[error("the payload of a frame of operation {seq} was changed on the way")]
    Changed { seq: u64 },
}

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
    /// What has come of the piece of the frame that is arriving on each stream but the first.
    placed: Box<[usize]>,
    /// Where the payload of the frame that is arriving goes, if not to a slot.
    diversion: Option<Diversion>,
    is_sealed: bool,
}

/// A payload that is read to a place outside the slots. What arrived of the stream behind it lies
/// where the next frame begins.
#[derive(Clone, Copy, Debug)]
struct Diversion {
    stripes: Stripes,
    /// What has come of the first piece.
    placed_bytes: usize,
    /// What the header said, which lies nowhere any more.
    seal: Option<Seal>,
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
    /// Room for `slots` frames of up to `chunk_bytes` of payload, which come over `streams` streams.
    pub(crate) fn new(slots: usize, chunk_bytes: usize, streams: usize) -> Self {
        assert!(slots >= 2, "the spill of one slot needs another, got {slots}");
        assert!(streams >= 1, "frames come over a stream");
        let words = (HEADER_BYTES + chunk_bytes).div_ceil(size_of::<u64>());
        let slot = |_| Slot { words: vec![0; words].into_boxed_slice(), frame_bytes: 0 };
        Self {
            slots: (0..slots).map(slot).collect(),
            frames: 0,
            oldest: 0,
            arrived: 0,
            placed: vec![0; streams - 1].into_boxed_slice(),
            diversion: None,
            is_sealed: false,
        }
    }

    /// The same for frames that are sealed.
    pub(crate) fn sealed(self) -> Self {
        Self { is_sealed: true, ..self }
    }

    /// The oldest complete frame, header and payload.
    pub(crate) fn front(&self) -> Option<&[u8]> {
        let slot = &self.slots[self.oldest];
        (self.frames > 0).then(|| &slot.bytes()[..slot.frame_bytes])
    }

    /// Gives the slot of the oldest frame back. What lay behind the newest one may become a frame by this.
    /// Panics if there is no frame.
    pub(crate) fn release(&mut self) -> Result<(), FrameError> {
        assert!(self.frames > 0, "release without a frame");
        let was_full = self.is_full();
        self.frames -= 1;
        let released = self.oldest;
        self.oldest = (self.oldest + 1) % self.slots.len();
        let is_in_pieces = self.placed.iter().any(|placed| *placed > 0);
        if self.frames == 0 && self.arrived <= HEADER_BYTES && !is_in_pieces {
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

    pub(crate) fn is_full(&self) -> bool {
        self.frames == self.slots.len()
    }

    /// What is there of a frame that is still arriving, from its header on to the first gap, if its
    /// header is there and no frame comes before it.
    pub(crate) fn arriving(&self) -> Option<&[u8]> {
        let next = self.frames == 0 && self.diversion.is_none() && self.arrived >= HEADER_BYTES;
        next.then(|| {
            let bytes = self.slots[self.oldest].bytes();
            if self.placed.is_empty() {
                return &bytes[..self.arrived];
            }
            match self.stripes(self.oldest) {
                Ok(Some(stripes)) => &bytes[..HEADER_BYTES + self.contiguous(&stripes)],
                _ => &bytes[..self.arrived],
            }
        })
    }

    /// How much of the payload of the frame that is arriving is there before the first gap.
    fn contiguous(&self, stripes: &Stripes) -> usize {
        let mut end = self.arrived - HEADER_BYTES;
        for (stream, placed) in (1..stripes.count()).zip(&self.placed) {
            if end < stripes.piece(stream).start {
                break;
            }
            end += placed;
        }
        end
    }

    /// Whether there is room for what a stream carries next.
    pub(crate) fn wants(&self, stream: usize) -> bool {
        if let Some(diversion) = &self.diversion {
            return self.came(stream, diversion.placed_bytes)
                < diversion.stripes.piece(stream).len();
        }
        if self.is_full() {
            return false;
        }
        if self.placed.is_empty() {
            return true;
        }
        // What is wrong with a header shows when the first stream is read.
        let Ok(Some(stripes)) = self.stripes(self.index(self.frames)) else {
            return stream == 0;
        };
        let came = self.came(stream, self.arrived.saturating_sub(HEADER_BYTES));
        came < stripes.piece(stream).len()
    }

    /// What has come of the piece on a stream, where `first` is what has come of the first.
    fn came(&self, stream: usize, first: usize) -> usize {
        match stream.checked_sub(1) {
            None => first,
            Some(other) => self.placed[other],
        }
    }

    /// The payload of the frame that is [`arriving`](Self::arriving) goes to `target` from now on:
    /// what is there is copied, the rest is for [`fill_diverted`](Self::fill_diverted).
    /// Panics if no frame is arriving or `target` is not as long as its payload.
    pub(crate) fn divert(&mut self, target: &mut [u8]) {
        assert!(self.arriving().is_some(), "only a frame is diverted");
        let stripes = self.stripes(self.oldest);
        let stripes = stripes.ok().flatten().expect("its header was read and checked");
        assert_eq!(stripes.payload_bytes(), target.len(), "payload and target differ in length");
        let seal = self.seal_of(self.oldest).expect("its header was read and checked");
        let payload = &self.slots[self.oldest].bytes()[HEADER_BYTES..];
        let placed_bytes = self.arrived - HEADER_BYTES;
        for stream in 0..stripes.count() {
            let start = stripes.piece(stream).start;
            let placed = start..start + self.came(stream, placed_bytes);
            target[placed.clone()].copy_from_slice(&payload[placed]);
        }
        self.arrived = 0;
        self.diversion = Some(Diversion { stripes, placed_bytes, seal });
    }

    /// Whether a payload is being read to a place outside: [`fill`](Self::fill) must wait.
    pub(crate) fn is_diverting(&self) -> bool {
        self.diversion.is_some()
    }

    /// Reads once, to the `target` of [`divert`](Self::divert), from a stream that is [wanted](Self::wants); the
    /// number of bytes that came. 0 is the end of the stream. The diversion ends with the payload.
    /// Panics if nothing is diverted, or to a target of another length.
    pub(crate) fn fill_diverted(
        &mut self,
        stream: usize,
        source: &mut impl Read,
        target: &mut [u8],
    ) -> Result<usize, InboxError> {
        let diversion = self.diversion.as_mut().expect("a frame was diverted");
        let stripes = diversion.stripes;
        assert_eq!(
            stripes.payload_bytes(),
            target.len(),
            "not the target that the frame was diverted to"
        );
        let piece = stripes.piece(stream);
        let placed = match stream.checked_sub(1) {
            None => &mut diversion.placed_bytes,
            Some(other) => &mut self.placed[other],
        };
        let rest = &mut target[piece.start + *placed..piece.end];
        let rest_bytes = rest.len();
        assert!(rest_bytes > 0, "nothing is wanted of stream {stream}");
        let read = if stripes.is_whole() {
            let ahead = read_ahead(self.slots[self.oldest].bytes_mut(), stripes.payload_bytes());
            source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?
        } else {
            source.read(rest)?
        };
        *placed += read.min(rest_bytes);
        let (first, seal) = (diversion.placed_bytes, diversion.seal);
        if first == stripes.piece(0).len() && self.is_placed(&stripes) {
            self.placed.fill(0);
            self.diversion = None;
            self.arrived = read.saturating_sub(rest_bytes);
            check(seal, target)?;
            self.settle()?;
        }
        Ok(read)
    }

    /// Reads once, from a stream that is [wanted](Self::wants); the number of bytes that came. 0 is the end of the
    /// stream. Panics if the inbox is full, or a frame is being diverted, or nothing is wanted of the stream.
    pub(crate) fn fill(
        &mut self,
        stream: usize,
        source: &mut impl Read,
    ) -> Result<usize, InboxError> {
        assert!(!self.is_full(), "no slot for what would be read");
        assert!(!self.is_diverting(), "the bytes belong to another place");
        if stream > 0 {
            return self.fill_piece(stream, source);
        }
        let arrived = self.arrived;
        let index = self.index(self.frames);
        let stripes = self.stripes(index)?;
        let next = (self.frames + 1 < self.slots.len()).then(|| self.index(self.frames + 1));
        let read = match (stripes, next) {
            (Some(stripes), Some(next)) if stripes.is_whole() => {
                let [slot, next] = self
                    .slots
                    .get_disjoint_mut([index, next])
                    .expect("two slots of a ring of at least two");
                let needed = HEADER_BYTES + stripes.payload_bytes();
                let ahead = read_ahead(next.bytes_mut(), stripes.payload_bytes());
                let rest = &mut slot.bytes_mut()[arrived..needed];
                let rest_bytes = rest.len();
                let read =
                    source.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?;
                if read > rest_bytes {
                    self.finish(index, needed)?;
                    self.arrived = read - rest_bytes;
                    self.settle()?;
                    return Ok(read);
                }
                read
            }
            (Some(stripes), _) => {
                let needed = HEADER_BYTES + stripes.piece(0).end;
                assert!(arrived < needed, "nothing is wanted of the first stream");
                source.read(&mut self.slots[index].bytes_mut()[arrived..needed])?
            }
            (None, _) => source.read(window(self.slots[index].bytes_mut(), arrived))?,
        };
        self.arrived += read;
        self.settle()?;
        Ok(read)
    }

    /// Reads once from a stream that carries nothing but pieces.
    fn fill_piece(&mut self, stream: usize, source: &mut impl Read) -> Result<usize, InboxError> {
        let index = self.index(self.frames);
        let stripes = self.stripes(index)?;
        let piece = stripes.expect("pieces come after a header").piece(stream);
        let placed = &mut self.placed[stream - 1];
        let payload = &mut self.slots[index].bytes_mut()[HEADER_BYTES..];
        let rest = &mut payload[piece.start + *placed..piece.end];
        assert!(!rest.is_empty(), "nothing is wanted of stream {stream}");
        let read = source.read(rest)?;
        *placed += read;
        self.settle()?;
        Ok(read)
    }

    /// Slot of frame number `number`, counted from the oldest.
    fn index(&self, number: usize) -> usize {
        (self.oldest + number) % self.slots.len()
    }

    /// The pieces of the frame whose beginning lies in slot `index`, once its header has arrived.
    fn stripes(&self, index: usize) -> Result<Option<Stripes>, FrameError> {
        if self.arrived < HEADER_BYTES {
            return Ok(None);
        }
        self.seal_of(index)?;
        let bytes = self.slots[index].bytes();
        let payload_bytes = wire::payload_bytes(bytes)? as usize;
        let frame_bytes = HEADER_BYTES + payload_bytes;
        if frame_bytes > bytes.len() {
            return Err(FrameError::TooLong { frame_bytes, slot_bytes: bytes.len() });
        }
        Ok(Some(Stripes::of(payload_bytes, 1 + self.placed.len())))
    }

    /// Whether the pieces of the frame that is arriving are there, but for the first.
    fn is_placed(&self, stripes: &Stripes) -> bool {
        let pieces = (1..stripes.count()).map(|stream| stripes.piece(stream).len());
        pieces.zip(&self.placed).all(|(len, placed)| len == *placed)
    }

    /// Counts the frames that are complete and moves what lies behind each to the next slot.
    fn settle(&mut self) -> Result<(), FrameError> {
        while !self.is_full() {
            let index = self.index(self.frames);
            let Some(stripes) = self.stripes(index)? else {
                return Ok(());
            };
            let needed = HEADER_BYTES + stripes.piece(0).len();
            if self.arrived < needed || !self.is_placed(&stripes) {
                return Ok(());
            }
            let end = self.arrived;
            self.finish(index, HEADER_BYTES + stripes.payload_bytes())?;
            self.arrived = end - needed;
            if self.arrived > 0 && !self.is_full() {
                self.spill(index, needed..end);
            }
        }
        Ok(())
    }

    /// What the header in slot `index` says of the payload, where frames are sealed.
    fn seal_of(&self, index: usize) -> Result<Option<Seal>, FrameError> {
        let read = || Seal::read(self.slots[index].bytes());
        Ok(self.is_sealed.then(read).transpose()?)
    }

    /// Slot `index` holds a frame of `frame_bytes` from now on.
    fn finish(&mut self, index: usize, frame_bytes: usize) -> Result<(), FrameError> {
        let payload = &self.slots[index].bytes()[HEADER_BYTES..frame_bytes];
        check(self.seal_of(index)?, payload)?;
        self.slots[index].frame_bytes = frame_bytes;
        self.frames += 1;
        self.placed.fill(0);
        Ok(())
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

/// Whether a payload is as it was sealed, if it was.
fn check(seal: Option<Seal>, payload: &[u8]) -> Result<(), FrameError> {
    match seal {
        Some(seal) if !seal.fits(payload) => Err(FrameError::Changed { seq: seal.seq }),
        _ => Ok(()),
    }
}

/// Where what lies behind a payload of `payload_bytes` goes. What follows a large frame is mostly
/// another: then only its header is asked for, so that its payload need not be moved.
fn read_ahead(slot: &mut [u8], payload_bytes: usize) -> &mut [u8] {
    if payload_bytes >= AHEAD_BYTES { &mut slot[..HEADER_BYTES] } else { window(slot, 0) }
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
