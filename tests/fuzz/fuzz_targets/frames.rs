//! The parser of a peer's byte stream against frames and garbage, cut anywhere, read at any pace: it
//! gives the frames that a plain reading of the whole stream gives, then the same error, and never
//! panics.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

// The files themselves: the parser is private to its crate, and a public door for a test would be one
// for everybody.
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/inbox.rs"]
mod inbox;
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/tests/sample.rs"]
mod sample;
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/stripes.rs"]
mod stripes;
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/wire.rs"]
mod wire;

use inbox::{FrameError, Inbox, InboxError};
use sample::{Trickle, header};
use stripes::Stripes;
use wire::{HEADER_BYTES, Seal};

/// Slots as in a link.
const SLOTS: usize = 4;

/// Chunks beyond this only cost the fuzzer time; within it, there are frames of three pieces.
const CHUNK_BYTES_MAX: u32 = 66 << 10;

/// As many as there are pieces.
const STREAMS_MAX: u8 = 3;

/// Streams are cut to about this: several times all slots, and little enough for byte-wise reads.
const STREAM_BYTES_MAX: usize = 512 << 10;

#[derive(Arbitrary, Debug)]
struct Input {
    chunk_bytes: u32,
    streams: u8,
    /// Whether frames carry checksums.
    sealed: bool,
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
    /// The same with a bit of it turned over, counted round and round.
    Changed { payload: u16, bit: u32 },
    /// A header of this length with nothing that fits behind it.
    Header { payload: u32 },
    /// Anything, on any stream.
    Raw(u8, Vec<u8>),
}

/// Every byte tells where it belongs.
fn payload(len: u16, fill: u8) -> Vec<u8> {
    (0..usize::from(len))
        .map(|index| fill ^ (index / 64) as u8)
        .collect()
}

fn put(streams: &mut [Vec<u8>], payload: &[u8], sealed: bool) {
    let mut header = header(payload.len() as u32);
    if sealed {
        wire::seal(&mut header, payload);
    }
    sample::put_behind(&header, streams, payload);
}

fn streams_of(pieces: &[Piece], count: usize, sealed: bool) -> Vec<Vec<u8>> {
    let mut streams = vec![Vec::new(); count];
    for piece in pieces {
        if streams.iter().map(Vec::len).sum::<usize>() >= STREAM_BYTES_MAX {
            break;
        }
        match piece {
            Piece::Frame { payload, fill } => {
                put(&mut streams, &self::payload(*payload, *fill), sealed);
            }
            Piece::Changed { payload, bit } => {
                let mut frame = vec![Vec::new(); count];
                put(&mut frame, &self::payload(*payload, 0), sealed);
                let stream = *bit as usize % count;
                let bits = frame[stream].len() * 8;
                if let Some(bit) = (*bit as usize).checked_rem(bits) {
                    frame[stream][bit / 8] ^= 1 << (bit % 8);
                }
                for (stream, frame) in streams.iter_mut().zip(frame) {
                    stream.extend(frame);
                }
            }
            Piece::Header { payload } => streams[0].extend_from_slice(&header(*payload)),
            Piece::Raw(stream, raw) => streams[usize::from(*stream) % count].extend_from_slice(raw),
        }
    }
    streams
}

/// The frames of the whole streams, and what is wrong with what follows them.
fn plain_reading(
    streams: &[Vec<u8>],
    slot_bytes: usize,
    sealed: bool,
) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut rest: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let mut frames = Vec::new();
    while rest[0].len() >= HEADER_BYTES {
        let seal = match sealed.then(|| Seal::read(rest[0])).transpose() {
            Ok(seal) => seal,
            Err(error) => return (frames, Some(error.into())),
        };
        let payload_bytes = match wire::payload_bytes(rest[0]) {
            Ok(payload_bytes) => payload_bytes as usize,
            Err(error) => return (frames, Some(error.into())),
        };
        let frame_bytes = HEADER_BYTES + payload_bytes;
        if frame_bytes > slot_bytes {
            let error = FrameError::TooLong {
                frame_bytes,
                slot_bytes,
            };
            return (frames, Some(error));
        }
        let stripes = Stripes::of(payload_bytes, streams.len());
        let mut frame = Vec::with_capacity(frame_bytes);
        for (stream, bytes) in rest.iter_mut().enumerate() {
            let head = if stream == 0 { HEADER_BYTES } else { 0 };
            let Some((part, behind)) = bytes.split_at_checked(head + stripes.piece(stream).len())
            else {
                return (frames, None);
            };
            frame.extend_from_slice(part);
            *bytes = behind;
        }
        if let Some(seal) = seal.filter(|seal| !seal.fits(&frame[HEADER_BYTES..])) {
            return (frames, Some(FrameError::Changed { seq: seal.seq }));
        }
        frames.push(frame);
    }
    (frames, None)
}

/// The next stream in turn that has something that is wanted.
fn next<S>(inbox: &Inbox, sources: &[Trickle<'_, S>], last: usize) -> Option<usize> {
    let count = sources.len();
    let mut order = (1..=count).map(|step| (last + step) % count);
    order.find(|stream| inbox.wants(*stream) && !sources[*stream].bytes.is_empty())
}

fuzz_target!(|input: Input| {
    let chunk_bytes = (input.chunk_bytes % CHUNK_BYTES_MAX) as usize;
    let count = usize::from(input.streams % STREAMS_MAX) + 1;
    let slot_bytes = (HEADER_BYTES + chunk_bytes).next_multiple_of(size_of::<u64>());
    let sealed = input.sealed;
    let streams = streams_of(&input.pieces, count, sealed);
    let (expected, error) = plain_reading(&streams, slot_bytes, sealed);
    let source = |bytes| Trickle {
        bytes,
        steps: input
            .cuts
            .iter()
            .cycle()
            .map(|cut| usize::from(*cut).max(1)),
    };
    let mut sources: Vec<_> = streams.iter().map(|bytes| source(&bytes[..])).collect();
    let mut stream = 0;
    let mut held = input.held.iter().cycle();
    let mut diverted = input.diverted.iter().cycle();
    let mut target = Vec::new();
    let mut inbox = Inbox::new(SLOTS, chunk_bytes, count);
    if sealed {
        inbox = inbox.sealed();
    }
    let mut seen = 0;
    let mut waiting = 0;
    let mut limit = SLOTS;
    let found = loop {
        let next = next(&inbox, &sources, stream);
        // Frames that wait are released from time to time, all of them at the end of the streams.
        if inbox.is_full() || waiting >= limit || (next.is_none() && inbox.front().is_some()) {
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
        stream = match next {
            Some(stream) => stream,
            None => break None,
        };
        // A payload on its way to a place outside, or one that might go there.
        if inbox.is_diverting() {
            match inbox.fill_diverted(stream, &mut sources[stream], &mut target) {
                Ok(read) => assert!(read > 0, "something is there"),
                Err(InboxError::Frame(error)) => {
                    assert!(!inbox.is_diverting(), "the payload is complete");
                    // Either it was changed, or what follows it is wrong.
                    if let Some(frame) = expected.get(seen) {
                        assert_eq!(target, frame[HEADER_BYTES..], "frame {seen}");
                        seen += 1;
                    }
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
        match inbox.fill(stream, &mut sources[stream]) {
            Ok(read) => {
                assert!(read > 0, "something is there");
                waiting += usize::from(inbox.front().is_some());
            }
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
