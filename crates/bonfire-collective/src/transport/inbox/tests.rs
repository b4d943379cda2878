//! Streams cut anywhere, read into slots and past them.

use std::iter::{Repeat, repeat};

use super::super::sample::{Trickle, header, put, put_behind};
use super::*;

const SLOTS: usize = 4;

/// Frame number `number`: every byte tells where it belongs.
fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|index| (number * 31 + index / 64) as u8).collect()
}

fn streams_of(payloads: &[usize], streams: usize) -> Vec<Vec<u8>> {
    let mut bytes = vec![Vec::new(); streams];
    for (number, len) in payloads.iter().enumerate() {
        put(&mut bytes, &payload(number, *len));
    }
    bytes
}

fn stream_of(payloads: &[usize]) -> Vec<u8> {
    streams_of(payloads, 1).remove(0)
}

/// Which frames are diverted if their header comes before their end.
#[derive(Clone, Copy, Debug)]
enum Diverted {
    None,
    All,
    EveryOther,
}

/// The other end of a link, which gives at most so many bytes per read.
struct Peer<'a> {
    sources: Vec<Trickle<'a, Repeat<usize>>>,
    turn: usize,
}

impl<'a> Peer<'a> {
    fn new(streams: &'a [Vec<u8>], step: usize) -> Self {
        let source = |bytes: &'a Vec<u8>| Trickle { bytes, steps: repeat(step) };
        Self { sources: streams.iter().map(source).collect(), turn: 0 }
    }

    fn is_drained(&self) -> bool {
        self.sources.iter().all(|source| source.bytes.is_empty())
    }

    /// The next stream in turn that has something that is wanted.
    fn next(&mut self, inbox: &Inbox) -> (usize, &mut Trickle<'a, Repeat<usize>>) {
        let count = self.sources.len();
        let has_some =
            |stream: &usize| inbox.wants(*stream) && !self.sources[*stream].bytes.is_empty();
        let mut order = (1..=count).map(|step| (self.turn + step) % count);
        self.turn = order.find(has_some).expect("something is wanted");
        (self.turn, &mut self.sources[self.turn])
    }
}

/// Reads whole streams, keeping up to `held` frames before releasing any.
fn check(payloads: &[usize], chunk_bytes: usize, step: usize, held: usize) {
    for diverted in [Diverted::None, Diverted::All, Diverted::EveryOther] {
        for streams in [1, 2, 3, 4] {
            let bytes = streams_of(payloads, streams);
            let inbox = Inbox::new(SLOTS, chunk_bytes, streams);
            check_diverted(payloads, inbox, Peer::new(&bytes, step), held, diverted);
        }
    }
}

fn check_diverted(
    payloads: &[usize],
    mut inbox: Inbox,
    mut peer: Peer<'_>,
    held: usize,
    diverted: Diverted,
) {
    let mut seen = 0;
    loop {
        while inbox.frames >= held || (peer.is_drained() && inbox.frames > 0) {
            let frame = inbox.front().unwrap();
            assert!(frame[HEADER_BYTES..] == payload(seen, payloads[seen]), "frame {seen}");
            inbox.release().unwrap();
            seen += 1;
        }
        if peer.is_drained() {
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
                let (stream, source) = peer.next(&inbox);
                assert!(inbox.fill_diverted(stream, source, &mut target).unwrap() > 0);
            }
            assert!(target == payload(seen, payloads[seen]), "frame {seen}");
            seen += 1;
        } else {
            let (stream, source) = peer.next(&inbox);
            assert!(inbox.fill(stream, source).unwrap() > 0);
            // What is said to be there is there.
            if let Some(frame) = inbox.arriving() {
                let part = &frame[HEADER_BYTES..];
                assert!(*part == payload(seen, payloads[seen])[..part.len()]);
            }
        }
    }
    assert_eq!(seen, payloads.len(), "{payloads:?}, {held} held");
    assert_eq!(inbox.fill(0, &mut peer.sources[0]).unwrap(), 0);
}

#[test]
fn frames_of_every_length_arrive_whole_however_the_stream_is_cut() {
    let small: Vec<usize> = (0..200).map(|index| index * 7 % 64).collect();
    let mixed = [0, 64_000, 1, 63_999, 16_384, 16_385, 0, 0, 0, 0, 0, 0, 64_000, 64_000, 3];
    let large = [300_000, 0, 1, 32_767, 32_768, 16_384, 0, 0, 0, 0, 0, 299_999, 65_536, 3, 40_000];
    for step in [1, 7, 127, 128, 129, 4096, 100_000, usize::MAX] {
        for held in 1..=SLOTS {
            check(&small, 64, step, held);
            if step >= 127 {
                check(&mixed, 64_000, step, held);
            }
            if step >= 4096 {
                check(&large, 300_000, step, held);
            }
        }
    }
}

#[test]
fn many_small_frames_in_one_read_wait_behind_the_newest() {
    let payloads = [0; 60];
    let bytes = stream_of(&payloads);
    let mut inbox = Inbox::new(SLOTS, 64_000, 1);
    assert_eq!(inbox.fill(0, &mut &bytes[..]).unwrap(), bytes.len());
    for _ in payloads {
        assert_eq!(inbox.front().unwrap().len(), HEADER_BYTES);
        inbox.release().unwrap();
    }
    assert!(inbox.front().is_none());
}

#[test]
fn a_stream_that_ends_in_a_diverted_payload_ends_there() {
    let bytes = stream_of(&[100]);
    let mut inbox = Inbox::new(SLOTS, 100, 1);
    inbox.fill(0, &mut &bytes[..HEADER_BYTES + 40]).unwrap();
    let mut target = [u8::MAX; 100];
    inbox.divert(&mut target);
    assert_eq!(target[..40], payload(0, 40));
    assert_eq!(target[40], u8::MAX);
    assert_eq!(inbox.fill_diverted(0, &mut &[][..], &mut target).unwrap(), 0);
    assert!(inbox.is_diverting());
}

#[test]
fn garbage_behind_a_diverted_payload_is_refused_when_it_is_reached() {
    let mut bytes = stream_of(&[100]);
    bytes.extend([7; HEADER_BYTES]);
    let mut inbox = Inbox::new(SLOTS, 100, 1);
    inbox.fill(0, &mut &bytes[..HEADER_BYTES]).unwrap();
    let mut target = [u8::MAX; 100];
    inbox.divert(&mut target);
    let read = inbox.fill_diverted(0, &mut &bytes[HEADER_BYTES..], &mut target);
    assert!(matches!(read, Err(InboxError::Frame(FrameError::Header(_)))));
    assert!(!inbox.is_diverting(), "the payload is complete");
    assert_eq!(target[..], payload(0, 100));
}

#[test]
fn frames_that_come_one_by_one_share_a_slot() {
    let mut inbox = Inbox::new(SLOTS, 64_000, 1);
    let mut places = Vec::new();
    let bytes = stream_of(&[64_000; 3]);
    let mut source = &bytes[..];
    while places.len() < 3 {
        if let Some(frame) = inbox.front() {
            assert!(frame[HEADER_BYTES..] == payload(places.len(), 64_000));
            places.push(frame.as_ptr());
            inbox.release().unwrap();
        } else {
            inbox.fill(0, &mut source).unwrap();
        }
    }
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
}

#[test]
fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
    let bytes = stream_of(&[65]);
    let mut inbox = Inbox::new(SLOTS, 64, 1);
    assert!(matches!(
        inbox.fill(0, &mut &bytes[..]),
        Err(InboxError::Frame(FrameError::TooLong { frame_bytes, .. }))
            if frame_bytes == HEADER_BYTES + 65
    ));
}

#[test]
fn bytes_that_are_no_frame_are_refused() {
    let mut inbox = Inbox::new(SLOTS, 64, 1);
    assert!(matches!(
        inbox.fill(0, &mut &[7_u8; 500][..]),
        Err(InboxError::Frame(FrameError::Header(WireError::Magic(_))))
    ));
}

#[test]
fn pieces_are_read_while_the_first_one_is_still_arriving() {
    let bytes = streams_of(&[100_000, 7], 3);
    let mut inbox = Inbox::new(SLOTS, 100_000, 3);
    assert!(inbox.wants(0) && !inbox.wants(1) && !inbox.wants(2));
    inbox.fill(0, &mut &bytes[0][..HEADER_BYTES]).unwrap();
    assert!(inbox.wants(1) && inbox.wants(2));
    // The last piece comes first, and waits behind a gap.
    assert_eq!(inbox.fill(2, &mut &bytes[2][..]).unwrap(), bytes[2].len());
    assert!(!inbox.wants(2));
    assert_eq!(inbox.arriving().unwrap().len(), HEADER_BYTES);
    let first = Stripes::of(100_000, 3).piece(0).len();
    let mut rest = &bytes[0][HEADER_BYTES..];
    assert_eq!(inbox.fill(0, &mut rest).unwrap(), first);
    assert_eq!(inbox.arriving().unwrap().len(), HEADER_BYTES + first);
    assert!(!inbox.wants(0), "the next frame waits in the kernel");
    let mut target = vec![u8::MAX; 100_000];
    inbox.divert(&mut target);
    assert!(!inbox.wants(0) && inbox.wants(1) && !inbox.wants(2));
    let piece = inbox.fill_diverted(1, &mut &bytes[1][..], &mut target);
    assert_eq!(piece.unwrap(), bytes[1].len());
    assert!(!inbox.is_diverting() && target == payload(0, 100_000));
    inbox.fill(0, &mut rest).unwrap();
    assert_eq!(inbox.front().unwrap()[HEADER_BYTES..], payload(1, 7));
}

/// What comes of one sealed frame that was written like this, and then a bit was turned over.
fn read_sealed(streams: &[Vec<u8>], len: usize, diverted: Diverted) -> Result<(), InboxError> {
    let mut inbox = Inbox::new(SLOTS, len, streams.len()).sealed();
    let mut peer = Peer::new(streams, 1000);
    let mut target = vec![0; len];
    while !peer.is_drained() {
        let wants = !matches!(diverted, Diverted::None);
        if wants && inbox.arriving().is_some() {
            inbox.divert(&mut target);
        }
        let is_diverting = inbox.is_diverting();
        let (stream, source) = peer.next(&inbox);
        if is_diverting {
            inbox.fill_diverted(stream, source, &mut target)?
        } else {
            inbox.fill(stream, source)?
        };
    }
    let whole = inbox.front().map(|frame| frame[HEADER_BYTES..].to_vec());
    assert_eq!(whole.unwrap_or(target), payload(3, len));
    Ok(())
}

#[test]
fn a_frame_of_which_a_bit_is_wrong_is_never_complete() {
    let len = 70_000;
    for count in [1, 2, 3] {
        let mut streams = vec![Vec::new(); count];
        let mut sealed = header(len as u32);
        wire::seal(&mut sealed, &payload(3, len));
        put_behind(&sealed, &mut streams, &payload(3, len));
        for diverted in [Diverted::None, Diverted::All] {
            read_sealed(&streams, len, diverted).unwrap();
            for stream in 0..count {
                for bit in [0, 333, 900, 1023, 1024, 5000, 8 * streams[stream].len() - 1] {
                    let mut changed = streams.clone();
                    changed[stream][bit / 8] ^= 1 << (bit % 8);
                    let error = read_sealed(&changed, len, diverted).unwrap_err();
                    let is_header = stream == 0 && bit < 8 * HEADER_BYTES;
                    match error {
                        InboxError::Frame(FrameError::Header(WireError::Changed)) => {
                            assert!(is_header, "bit {bit} of stream {stream}");
                        }
                        InboxError::Frame(FrameError::Changed { seq: 2 }) => {
                            assert!(!is_header, "bit {bit} of stream {stream}");
                        }
                        other => panic!("bit {bit} of stream {stream}: {other}"),
                    }
                }
            }
        }
    }
}
