//! What becomes of frames that are changed between two links.

use std::io::Read;

use super::super::sample::header;
use super::*;
use bonfire_connect::platform::net::UnixStream;

const PAYLOAD_BYTES: usize = 3000;

/// Two links, and the ends of what is between them: what the one sends is read here, and written there.
struct Way {
    source: SocketLink,
    target: SocketLink,
    from: UnixStream,
    to: UnixStream,
}

impl Way {
    fn new() -> Self {
        let (near, from) = UnixStream::pair().unwrap();
        let (to, far) = UnixStream::pair().unwrap();
        let link = |end| SocketLink::new(vec![Stream::Unix(end)], PAYLOAD_BYTES, false).unwrap();
        Self { source: link(near).sealed(), target: link(far).sealed(), from, to }
    }

    /// Carries a frame over, with one bit turned over if so wished; what the target says of it.
    fn carry(&mut self, payload: &[u8], flip: Option<usize>) -> Result<(), LinkError> {
        let [sender, receiver] = [0, 1].map(Rank::new);
        let header = header(payload.len() as u32);
        let sent = self.source.send(receiver, &header, payload)?;
        assert_eq!(sent, Progress::Done);
        let mut bytes = vec![0; HEADER_BYTES + payload.len()];
        self.from.read_exact(&mut bytes).unwrap();
        if let Some(bit) = flip {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.to.write_all(&bytes).unwrap();
        while self.target.receive() > 0 {}
        self.target.check(sender)?;
        let frame = self.target.front().expect("all of it was written");
        assert_eq!(frame.payload(), payload);
        assert!(frame.agrees_with(&header));
        self.target.release();
        Ok(())
    }
}

#[test]
fn a_link_names_the_rank_and_the_operation_of_a_frame_that_was_changed() {
    for (bit, seq) in [
        (8 * HEADER_BYTES, Some(2)),
        (8 * (HEADER_BYTES + PAYLOAD_BYTES) - 1, Some(2)),
        (8 * 40, None),
        (0, None),
    ] {
        let mut way = Way::new();
        // A seal is of its own frame: the second has another payload.
        way.carry(&[7; PAYLOAD_BYTES], None).unwrap();
        way.carry(&[8; 10], None).unwrap();
        let error = way.carry(&[9; PAYLOAD_BYTES], Some(bit)).unwrap_err();
        match error {
            LinkError::Changed { rank, seq: found } => {
                assert_eq!((rank, found), (Rank::new(0), seq), "bit {bit}");
            }
            other => panic!("bit {bit}: {other:?}"),
        }
        assert!(way.target.front().is_none(), "nobody sees the frame");
    }
}

#[test]
fn a_link_without_checksums_believes_what_comes() {
    let mut way = Way::new();
    let link = |end| SocketLink::new(vec![Stream::Unix(end)], PAYLOAD_BYTES, false).unwrap();
    let (near, from) = UnixStream::pair().unwrap();
    let (to, far) = UnixStream::pair().unwrap();
    (way.source, way.from) = (link(near), from);
    (way.target, way.to) = (link(far), to);
    way.carry(&[7; PAYLOAD_BYTES], None).unwrap();
    // In the call-site, of which nobody depends.
    way.carry(&[7; PAYLOAD_BYTES], Some(8 * 100)).unwrap();
}

/// What is short never waits for another thread.
#[test]
fn streams_but_the_first_have_threads_where_that_is_asked_for() {
    for has_threads in [false, true] {
        let ends = (0..3).map(|_| UnixStream::pair().unwrap().0);
        let streams = ends.map(Stream::Unix).collect();
        let link = SocketLink::new(streams, PAYLOAD_BYTES, has_threads).unwrap();
        let found: Vec<bool> = link.streams().map(Carrier::reports_room).collect();
        assert_eq!(found, [false, has_threads, has_threads]);
    }
}
