//! Frames out of a byte stream: where they begin, where they end, and the memory they lie in.
//!
//! Pure: it reads from whatever implements [`Read`] and knows nothing of sockets or waiting. One read
//! asks for the rest of the frame that is arriving and for the beginning of the next one, so a stream
//! of large frames costs one system call per frame and copies nothing, and a short frame arrives with
//! its header in one call. What a read brings beyond the end of a short frame (the spill) is moved to
//! the slot of the next.
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
        self.oldest = (self.oldest + 1) % self.slots.len();
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

    /// Reads once; the number of bytes that came. 0 is the end of the stream.
    ///
    /// # Panics
    /// If the inbox is full.
    pub(crate) fn fill(&mut self, source: &mut impl Read) -> Result<usize, InboxError> {
        assert!(!self.is_full(), "no slot for what would be read");
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
                let ahead = window(next.bytes_mut(), 0);
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

/// Where a read goes while the length of the frame is not known: behind the `arrived` bytes, up to
/// the read-ahead. Never empty, because a slot has room for a header and the header is not complete.
fn window(slot: &mut [u8], arrived: usize) -> &mut [u8] {
    let end = slot.len().min(HEADER_BYTES + AHEAD_BYTES);
    &mut slot[arrived..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_plan::wire::{CallSite, Operation, encode_header};
    use bonfire_plan::{Algorithm, Collective, DType};

    const SLOTS: usize = 4;

    /// A stream that gives at most `step` bytes per call.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.read_vectored(&mut [IoSliceMut::new(buffer)])
        }

        fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let mut left = self.step.min(self.bytes.len());
            let mut read = 0;
            for buffer in buffers {
                let len = left.min(buffer.len());
                buffer[..len].copy_from_slice(&self.bytes[..len]);
                self.bytes = &self.bytes[len..];
                left -= len;
                read += len;
            }
            Ok(read)
        }
    }

    fn header(payload_bytes: usize) -> [u8; HEADER_BYTES] {
        let operation = Operation {
            group: 0,
            seq: 0,
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            dtype: DType::F32,
            reduce: None,
            count: 0,
            layout: 0,
            call_site: CallSite::default(),
        };
        encode_header(&operation, payload_bytes as u32)
    }

    fn stream_of(payloads: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, payload) in payloads.iter().enumerate() {
            bytes.extend_from_slice(&header(*payload));
            bytes.extend(std::iter::repeat_n(number as u8, *payload));
        }
        bytes
    }

    /// Reads the whole stream, keeping up to `held` frames before releasing any.
    fn check(payloads: &[usize], chunk_bytes: usize, step: usize, held: usize) {
        let bytes = stream_of(payloads);
        let mut source = Trickle {
            bytes: &bytes,
            step,
        };
        let mut inbox = Inbox::new(SLOTS, chunk_bytes);
        let mut seen = 0;
        loop {
            while inbox.frames >= held || (source.bytes.is_empty() && inbox.frames > 0) {
                let frame = inbox.front().unwrap();
                assert_eq!(frame.len(), HEADER_BYTES + payloads[seen]);
                assert!(frame[HEADER_BYTES..].iter().all(|byte| *byte == seen as u8));
                inbox.release().unwrap();
                seen += 1;
            }
            if source.bytes.is_empty() {
                break;
            }
            assert!(inbox.fill(&mut source).unwrap() > 0);
        }
        assert_eq!(seen, payloads.len(), "{payloads:?}, {step} bytes at a time");
        assert_eq!(inbox.fill(&mut source).unwrap(), 0);
    }

    #[test]
    fn frames_of_every_length_arrive_whole_however_the_stream_is_cut() {
        let small: Vec<usize> = (0..200).map(|index| index * 7 % 64).collect();
        let mixed = [
            0, 64_000, 1, 63_999, 16_384, 16_385, 0, 0, 0, 0, 0, 0, 64_000, 64_000, 3,
        ];
        for step in [1, 7, 127, 128, 129, 4096, 100_000, usize::MAX] {
            for held in 1..=SLOTS {
                check(&small, 64, step, held);
                if step >= 127 {
                    check(&mixed, 64_000, step, held);
                }
            }
        }
    }

    #[test]
    fn many_small_frames_in_one_read_wait_behind_the_newest() {
        let payloads = [0; 60];
        let bytes = stream_of(&payloads);
        let mut source = &bytes[..];
        let mut inbox = Inbox::new(SLOTS, 64_000);
        assert_eq!(inbox.fill(&mut source).unwrap(), bytes.len());
        for _ in payloads {
            assert_eq!(inbox.front().unwrap().len(), HEADER_BYTES);
            inbox.release().unwrap();
        }
        assert!(inbox.front().is_none());
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let bytes = stream_of(&[65]);
        let mut inbox = Inbox::new(SLOTS, 64);
        assert!(matches!(
            inbox.fill(&mut &bytes[..]),
            Err(InboxError::Frame(FrameError::TooLong { frame_bytes, .. }))
                if frame_bytes == HEADER_BYTES + 65
        ));
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        let mut inbox = Inbox::new(SLOTS, 64);
        assert!(matches!(
            inbox.fill(&mut &[7_u8; 500][..]),
            Err(InboxError::Frame(FrameError::Header(WireError::Magic(_))))
        ));
    }
}
