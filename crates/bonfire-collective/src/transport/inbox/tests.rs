//! Streams cut anywhere, read into slots and past them.

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

/// Which frames are diverted if their header comes before their end.
#[derive(Clone, Copy, Debug)]
enum Diverted {
    None,
    All,
    EveryOther,
}

/// Reads the whole stream, keeping up to `held` frames before releasing any.
fn check(payloads: &[usize], chunk_bytes: usize, step: usize, held: usize) {
    for diverted in [Diverted::None, Diverted::All, Diverted::EveryOther] {
        check_diverted(payloads, chunk_bytes, step, held, diverted);
    }
}

fn check_diverted(
    payloads: &[usize],
    chunk_bytes: usize,
    step: usize,
    held: usize,
    diverted: Diverted,
) {
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
        let divert = match diverted {
            Diverted::None => false,
            Diverted::All => true,
            Diverted::EveryOther => seen % 2 == 1,
        };
        if divert && inbox.arriving().is_some() {
            let mut target = vec![u8::MAX; payloads[seen]];
            inbox.divert(&mut target);
            assert!(inbox.arriving().is_none() && inbox.front().is_none());
            while inbox.is_diverting() {
                assert!(inbox.fill_diverted(&mut source, &mut target).unwrap() > 0);
            }
            assert!(
                target.iter().all(|byte| *byte == seen as u8),
                "frame {seen}"
            );
            seen += 1;
        } else {
            assert!(inbox.fill(&mut source).unwrap() > 0);
        }
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
fn a_stream_that_ends_in_a_diverted_payload_ends_there() {
    let bytes = stream_of(&[100]);
    let mut inbox = Inbox::new(SLOTS, 100);
    inbox.fill(&mut &bytes[..HEADER_BYTES + 40]).unwrap();
    let mut target = [u8::MAX; 100];
    inbox.divert(&mut target);
    assert_eq!(target[..41], *[[0; 40].as_slice(), &[u8::MAX]].concat());
    assert_eq!(inbox.fill_diverted(&mut &[][..], &mut target).unwrap(), 0);
    assert!(inbox.is_diverting());
}

#[test]
fn garbage_behind_a_diverted_payload_is_refused_when_it_is_reached() {
    let mut bytes = stream_of(&[100]);
    bytes.extend([7; HEADER_BYTES]);
    let mut inbox = Inbox::new(SLOTS, 100);
    inbox.fill(&mut &bytes[..HEADER_BYTES]).unwrap();
    let mut target = [u8::MAX; 100];
    inbox.divert(&mut target);
    let read = inbox.fill_diverted(&mut &bytes[HEADER_BYTES..], &mut target);
    assert!(matches!(
        read,
        Err(InboxError::Frame(FrameError::Header(_)))
    ));
    assert!(!inbox.is_diverting(), "the payload is complete");
    assert_eq!(target, [0; 100]);
}

#[test]
fn frames_that_come_one_by_one_share_a_slot() {
    let mut inbox = Inbox::new(SLOTS, 64_000);
    let mut places = Vec::new();
    let bytes = stream_of(&[64_000; 3]);
    let mut source = &bytes[..];
    while places.len() < 3 {
        if let Some(frame) = inbox.front() {
            assert!(
                frame[HEADER_BYTES..]
                    .iter()
                    .all(|byte| *byte == places.len() as u8)
            );
            places.push(frame.as_ptr());
            inbox.release().unwrap();
        } else {
            inbox.fill(&mut source).unwrap();
        }
    }
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
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
