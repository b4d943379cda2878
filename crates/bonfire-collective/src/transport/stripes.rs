//! How a payload is divided among the streams of a link.
//!
//! A large payload is cut into as many pieces as there are streams, and piece number i goes over stream number i,
//! frame after frame. So the header, which goes over the first stream, says all that a receiver needs to know of the
//! others: they carry nothing but pieces. A small payload is one piece, and goes behind its header.

use std::ops::Range;

#[cfg(test)]
use crate::options::STREAMS_MAX;

/// Payloads are not cut into shorter pieces: each costs a system call at either end.
pub(crate) const PIECE_BYTES_MIN: usize = 16 << 10;
/// Pieces begin on cache lines, and so on whole elements.
const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stripes {
    payload_bytes: usize,
    count: usize,
    /// Of every piece but the last, which may be shorter.
    piece_bytes: usize,
}

impl Stripes {
    /// The pieces of a payload on a link of `streams` streams.
    pub(crate) fn of(payload_bytes: usize, streams: usize) -> Self {
        let count = (payload_bytes / PIECE_BYTES_MIN).clamp(1, streams);
        let piece_bytes = match count {
            1 => payload_bytes,
            _ => payload_bytes.div_ceil(count).next_multiple_of(LINE_BYTES),
        };
        Self { payload_bytes, count, piece_bytes }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Whether the payload goes over the first stream alone.
    pub(crate) fn is_whole(&self) -> bool {
        self.count == 1
    }

    /// The bytes of the payload that go over a stream; none if that has no part in it.
    pub(crate) fn piece(&self, stream: usize) -> Range<usize> {
        let at = |stream: usize| (stream * self.piece_bytes).min(self.payload_bytes);
        at(stream)..at(stream + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_payload_and_none_is_short_or_crooked() {
        let around = |middle: usize| middle - 65..middle + 66;
        for streams in 1..=STREAMS_MAX {
            let lengths = (0..70)
                .chain((1..=STREAMS_MAX + 1).flat_map(|count| around(count * PIECE_BYTES_MIN)))
                .chain([1 << 20, 64 << 20, 1_234_567]);
            for payload_bytes in lengths {
                let stripes = Stripes::of(payload_bytes, streams);
                let what = format!("{payload_bytes} bytes on {streams} streams: {stripes:?}");
                assert_eq!(stripes.payload_bytes(), payload_bytes);
                assert!((1..=streams).contains(&stripes.count()), "{what}");
                let mut end = 0;
                for stream in 0..stripes.count() {
                    let piece = stripes.piece(stream);
                    assert_eq!(piece.start, end, "{what}");
                    assert!(piece.start.is_multiple_of(LINE_BYTES), "{what}");
                    let least = if stripes.is_whole() {
                        0
                    } else {
                        // The last makes up for the rounding of the others.
                        PIECE_BYTES_MIN - LINE_BYTES * STREAMS_MAX
                    };
                    assert!(piece.len() >= least, "{what}");
                    end = piece.end;
                }
                assert_eq!(end, payload_bytes, "{what}");
                for stream in stripes.count()..STREAMS_MAX {
                    assert!(stripes.piece(stream).is_empty(), "{what}");
                }
                let first = stripes.piece(0).len();
                assert!(stripes.is_whole() || first >= PIECE_BYTES_MIN, "{what}");
            }
        }
    }

    #[test]
    fn small_payloads_are_whole_and_large_ones_use_every_stream() {
        assert!(Stripes::of(2 * PIECE_BYTES_MIN - 1, 4).is_whole());
        assert_eq!(Stripes::of(2 * PIECE_BYTES_MIN, 4).count(), 2);
        assert_eq!(Stripes::of(256 << 10, 4).count(), 4);
        assert_eq!(Stripes::of(256 << 10, STREAMS_MAX).count(), STREAMS_MAX);
        assert!(Stripes::of(64 << 20, 1).is_whole());
    }
}
