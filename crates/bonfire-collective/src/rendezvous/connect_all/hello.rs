//! The first thing said on a proven connection: whose it is, and what for.
//!
//! The connector says it, the acceptor welcomes it, the connector confirms that it was welcomed, and the acceptor
//! says that it is ready. The connector believes in the connection when it has read the last word, the acceptor when
//! it has sent it to a connector that was still there. An end without an answer ends the connection, and the
//! connector begins again: also where one of the two stood still for longer than the other waited.

use std::io::{self, Read, Write};

use bonfire_plan::Rank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Control,
    /// Frames, or parts of them: the stream of this number.
    Data(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: Rank,
    pub(super) purpose: Purpose,
}

/// Group, rank, purpose and number of the stream.
const TEXT_BYTES: usize = 10;
/// The same with a CRC-32C of it.
const HELLO_BYTES: usize = TEXT_BYTES + size_of::<u32>();
const WELCOME: u8 = b'w';
const CONFIRMED: u8 = b'c';
const READY: u8 = b'r';

impl Hello {
    fn encode(self, group: u32) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&group.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.rank.get().to_le_bytes());
        [bytes[8], bytes[9]] = match self.purpose {
            Purpose::Control => [1, 0],
            Purpose::Data(stream) => [2, stream],
        };
        let sum = crc32c::crc32c(&bytes[..TEXT_BYTES]);
        bytes[TEXT_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Nothing if it is of another group, or was changed on the way.
    fn decode(bytes: &[u8; HELLO_BYTES], group: u32) -> Option<Self> {
        let number = |at: usize| {
            let bytes = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes)
        };
        if number(TEXT_BYTES) != crc32c::crc32c(&bytes[..TEXT_BYTES]) || number(0) != group {
            return None;
        }
        let purpose = match bytes[8] {
            1 => Purpose::Control,
            2 => Purpose::Data(bytes[9]),
            _ => return None,
        };
        let rank = Rank::new(number(4));
        Some(Self { rank, purpose })
    }

    pub(super) fn send(self, stream: &mut (impl Read + Write), group: u32) -> io::Result<()> {
        stream.write_all(&self.encode(group))?;
        expect(stream, WELCOME)?;
        stream.write_all(&[CONFIRMED])?;
        expect(stream, READY)
    }

    /// The acceptor's part, before [`settle`]. Who is not `wanted` is not welcomed.
    pub(super) fn receive(
        stream: &mut (impl Read + Write),
        group: u32,
        wanted: impl FnOnce(Self) -> bool,
    ) -> io::Result<Self> {
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes)?;
        let hello = Self::decode(&bytes, group).filter(|hello| wanted(*hello));
        let hello = hello.ok_or(io::ErrorKind::InvalidData)?;
        stream.write_all(&[WELCOME])?;
        Ok(hello)
    }
}

/// The acceptor's last part. `has_news` says whether something has come meanwhile: a connector that
/// waits for the last word says nothing, so it has given up.
pub(super) fn settle<S: Read + Write>(
    stream: &mut S,
    has_news: impl FnOnce() -> bool,
) -> io::Result<()> {
    expect(stream, CONFIRMED)?;
    if has_news() {
        Err(io::ErrorKind::ConnectionAborted.into())
    } else {
        stream.write_all(&[READY])
    }
}

fn expect(stream: &mut impl Read, word: u8) -> io::Result<()> {
    let mut found = [0];
    stream.read_exact(&mut found)?;
    if found[0] == word { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both directions of a connection whose other end has said all that it will say.
    struct Script(std::io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Script {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn neither_end_believes_in_a_connection_that_the_other_has_given_up() {
        let script = |said: &[u8]| Script(std::io::Cursor::new(said.to_vec()), Vec::new());
        let hello = Hello { rank: Rank::new(2), purpose: Purpose::Control };
        hello.send(&mut script(b"w"), 7).unwrap_err();
        hello.send(&mut script(b"wr"), 7).unwrap();
        let mut stream = script(b"c");
        settle(&mut stream, || true).unwrap_err();
        assert!(stream.1.is_empty(), "it says that it is ready");
        settle(&mut script(b"c"), || false).unwrap();
    }

    #[test]
    fn a_hello_comes_back_and_one_that_was_changed_does_not() {
        let group = 7;
        for purpose in [Purpose::Control, Purpose::Data(3)] {
            let rank = Rank::new(258);
            let hello = Hello { rank, purpose };
            let bytes = hello.encode(group);
            assert_eq!(Hello::decode(&bytes, group), Some(hello));
            assert_eq!(Hello::decode(&bytes, group + 1), None);
            for bit in 0..HELLO_BYTES * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Hello::decode(&changed, group), None, "bit {bit}");
            }
        }
    }
}
