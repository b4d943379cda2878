//! The parser of a peer's byte stream against frames and garbage, cut anywhere, read at any pace: it
//! gives the frames that a plain reading of the whole stream gives, then the same error, and never
//! panics.

#![no_main]

use std::io::{self, IoSliceMut, Read};

use arbitrary::Arbitrary;
use bonfire_plan::wire::{self, CallSite, HEADER_BYTES, Operation};
use bonfire_plan::{Algorithm, Collective, DType};
use libfuzzer_sys::fuzz_target;

// The file itself: the parser is private to its crate, and a public door for a test would be one
// for everybody.
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/inbox.rs"]
mod inbox;

use inbox::{FrameError, Inbox, InboxError};

/// Slots as in a link.
const SLOTS: usize = 4;

/// Chunks beyond this only cost the fuzzer time.
const CHUNK_BYTES_MAX: u32 = 40 << 10;

/// Streams are cut to about this: several times all slots, and little enough for byte-wise reads.
const STREAM_BYTES_MAX: usize = 512 << 10;

#[derive(Arbitrary, Debug)]
struct Input {
    chunk_bytes: u32,
    pieces: Vec<Piece>,
    /// Bytes per read, over and over.
    cuts: Vec<u16>,
    /// Frames kept before the oldest is released, over and over.
    held: Vec<u8>,
    /// Whether a frame that is arriving is diverted, over and over.
    diverted: Vec<bool>,
}

#[derive(Arbitrary, Debug)]
enum Piece {
    /// A frame as a rank sends it.
    Frame { payload: u16, fill: u8 },
    /// A header of this length with nothing that fits behind it.
    Header { payload: u32 },
    /// Anything.
    Raw(Vec<u8>),
}

struct Trickle<'a> {
    bytes: &'a [u8],
    cuts: std::iter::Cycle<std::slice::Iter<'a, u16>>,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let cut = self
            .cuts
            .next()
            .map_or(usize::MAX, |cut| usize::from(*cut).max(1));
        let mut left = cut.min(self.bytes.len());
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

fn header(payload: u32) -> [u8; HEADER_BYTES] {
    let operation = Operation {
        group: 1,
        seq: 2,
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        dtype: DType::F32,
        reduce: None,
        count: 3,
        layout: 0,
        call_site: CallSite::default(),
    };
    wire::encode_header(&operation, payload)
}

fn stream_of(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        if bytes.len() >= STREAM_BYTES_MAX {
            break;
        }
        match piece {
            Piece::Frame { payload, fill } => {
                bytes.extend_from_slice(&header(u32::from(*payload)));
                bytes.resize(bytes.len() + usize::from(*payload), *fill);
            }
            Piece::Header { payload } => bytes.extend_from_slice(&header(*payload)),
            Piece::Raw(raw) => bytes.extend_from_slice(raw),
        }
    }
    bytes
}

/// The frames of the whole stream, and what is wrong with what follows them.
fn plain_reading(mut bytes: &[u8], slot_bytes: usize) -> (Vec<&[u8]>, Option<FrameError>) {
    let mut frames = Vec::new();
    while bytes.len() >= HEADER_BYTES {
        let frame_bytes = match wire::payload_bytes(bytes) {
            Ok(payload) => HEADER_BYTES + payload as usize,
            Err(error) => return (frames, Some(error.into())),
        };
        if frame_bytes > slot_bytes {
            let error = FrameError::TooLong {
                frame_bytes,
                slot_bytes,
            };
            return (frames, Some(error));
        }
        if bytes.len() < frame_bytes {
            break;
        }
        let (frame, rest) = bytes.split_at(frame_bytes);
        frames.push(frame);
        bytes = rest;
    }
    (frames, None)
}

fuzz_target!(|input: Input| {
    let chunk_bytes = (input.chunk_bytes % CHUNK_BYTES_MAX) as usize;
    let slot_bytes = (HEADER_BYTES + chunk_bytes).next_multiple_of(size_of::<u64>());
    let stream = stream_of(&input.pieces);
    let (expected, error) = plain_reading(&stream, slot_bytes);
    let mut source = Trickle {
        bytes: &stream,
        cuts: input.cuts.iter().cycle(),
    };
    let mut held = input.held.iter().cycle();
    let mut diverted = input.diverted.iter().cycle();
    let mut target = Vec::new();
    let mut inbox = Inbox::new(SLOTS, chunk_bytes);
    let mut seen = 0;
    let mut waiting = 0;
    let mut limit = SLOTS;
    let found = loop {
        // Frames that wait are released from time to time, all of them at the end of the stream.
        if inbox.is_full()
            || waiting >= limit
            || (source.bytes.is_empty() && inbox.front().is_some())
        {
            let frame = inbox.front().expect("frames wait");
            assert_eq!(frame, expected[seen], "frame {seen}");
            seen += 1;
            waiting = 0;
            limit = held.next().map_or(SLOTS, |held| usize::from(*held).max(1));
            if let Err(error) = inbox.release() {
                break Some(error);
            }
            continue;
        }
        // A payload on its way to a place outside, or one that might go there.
        if inbox.is_diverting() {
            match inbox.fill_diverted(&mut source, &mut target) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(InboxError::Frame(error)) => {
                    assert!(!inbox.is_diverting(), "the payload is complete");
                    assert_eq!(target, expected[seen][HEADER_BYTES..], "frame {seen}");
                    seen += 1;
                    break Some(error);
                }
                Err(InboxError::Io(error)) => panic!("the source does not fail: {error}"),
            }
            if !inbox.is_diverting() {
                assert_eq!(target, expected[seen][HEADER_BYTES..], "frame {seen}");
                seen += 1;
            }
            continue;
        }
        if let Some(frame) = inbox.arriving()
            && diverted.next().is_some_and(|diverted| *diverted)
        {
            // Checked when the header came: it is one, and not too long.
            let payload = wire::payload_bytes(frame).expect("a header");
            target.clear();
            target.resize(payload as usize, 0);
            inbox.divert(&mut target);
            continue;
        }
        match inbox.fill(&mut source) {
            Ok(0) => break None,
            Ok(_) => waiting += usize::from(inbox.front().is_some()),
            Err(InboxError::Frame(error)) => break Some(error),
            Err(InboxError::Io(error)) => panic!("the source does not fail: {error}"),
        }
    };
    // After an error nothing more is read, but what came before it is there.
    while seen < expected.len() && found.is_some() {
        let Some(frame) = inbox.front() else { break };
        assert_eq!(frame, expected[seen], "frame {seen} before the error");
        seen += 1;
        if inbox.release().is_err() {
            break;
        }
    }
    assert_eq!(found, error);
    assert_eq!(seen, expected.len(), "frames are missing");
});
