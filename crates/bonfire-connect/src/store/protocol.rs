//! The frames between a store client and its server.
//!
//! A request is `verb u8 | key length u32 | value length u32 | number i64 | sums | key | value`; the
//! number is the amount for `add` and the timeout in milliseconds for `get`. A reply is
//! `status u8 | length u32 | number i64 | sums | bytes`. The sums are a CRC-32C of what comes behind them
//! and one of all before that: what was changed on the way is never a request or an answer. Lengths are
//! checked before anything is allocated.

use std::io::{self, Read, Write};

use super::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

#[derive(Debug)]
pub(super) enum Request {
    Set { key: String, value: Vec<u8> },
    Get { key: String, timeout_ms: u64 },
    Add { key: String, amount: i64 },
}

#[derive(Debug)]
pub(super) enum Reply {
    Done(i64),
    Value(Vec<u8>),
    TimedOut,
}

impl Request {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let (verb, key, value, number): (u8, &str, &[u8], i64) = match self {
            Self::Set { key, value } => (1, key, value, 0),
            Self::Get { key, timeout_ms } => {
                (2, key, &[], i64::try_from(*timeout_ms).unwrap_or(i64::MAX))
            }
            Self::Add { key, amount } => (3, key, &[], *amount),
        };
        let mut frame = vec![verb];
        frame.extend_from_slice(&(key.len() as u32).to_le_bytes());
        frame.extend_from_slice(&(value.len() as u32).to_le_bytes());
        frame.extend_from_slice(&number.to_le_bytes());
        append(&mut frame, &[key.as_bytes(), value].concat());
        stream.write_all(&frame)
    }

    /// `None` when the client hung up between two requests.
    pub(super) fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 17 + SUMS_BYTES];
        if !read_or_end(stream, &mut head)? {
            return Ok(None);
        }
        let sum = check_head(&head)?;
        let key_bytes = u32_at(&head, 1) as usize;
        let value_bytes = u32_at(&head, 5) as usize;
        let number = i64_at(&head, 9);
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(invalid("request longer than the store takes"));
        }
        let mut key = read_body(stream, key_bytes + value_bytes, sum)?;
        let value = key.split_off(key_bytes);
        let key = String::from_utf8(key).map_err(|_| invalid("key is not UTF-8"))?;
        Ok(Some(match head[0] {
            1 => Self::Set { key, value },
            2 => Self::Get { key, timeout_ms: u64::try_from(number).unwrap_or(0) },
            3 => Self::Add { key, amount: number },
            _ => return Err(invalid("unknown verb")),
        }))
    }
}

impl Reply {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let (status, number, bytes): (u8, i64, &[u8]) = match self {
            Self::Done(number) => (1, *number, &[]),
            Self::Value(bytes) => (2, 0, bytes),
            Self::TimedOut => (3, 0, &[]),
        };
        let mut frame = vec![status];
        frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        frame.extend_from_slice(&number.to_le_bytes());
        append(&mut frame, bytes);
        stream.write_all(&frame)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 13 + SUMS_BYTES];
        stream.read_exact(&mut head)?;
        let sum = check_head(&head)?;
        let len = u32_at(&head, 1) as usize;
        if len > VALUE_BYTES_MAX {
            return Err(invalid("reply longer than the store gives"));
        }
        let bytes = read_body(stream, len, sum)?;
        Ok(match head[0] {
            1 => Self::Done(i64_at(&head, 5)),
            2 => Self::Value(bytes),
            3 => Self::TimedOut,
            _ => return Err(invalid("unknown status")),
        })
    }
}

/// False at the end of the stream before the first byte.
fn read_or_end(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    let first = loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut bytes[first..])?;
    Ok(true)
}

/// Of the body, and of the head with that.
const SUMS_BYTES: usize = 2 * size_of::<u32>();

/// Adds the sums and the body to a head.
fn append(head: &mut Vec<u8>, body: &[u8]) {
    head.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    head.extend_from_slice(&crc32c::crc32c(head).to_le_bytes());
    head.extend_from_slice(body);
}

/// The sum of the body, if the head is as it was sent.
fn check_head(head: &[u8]) -> io::Result<u32> {
    let (summed, sum) = head.split_at(head.len() - size_of::<u32>());
    if u32_at(sum, 0) == crc32c::crc32c(summed) {
        Ok(u32_at(head, head.len() - SUMS_BYTES))
    } else {
        Err(invalid("a message of the store was changed on the way"))
    }
}

fn read_body(stream: &mut impl Read, len: usize, sum: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    if crc32c::crc32c(&bytes) == sum {
        Ok(bytes)
    } else {
        Err(invalid("a message of the store was changed on the way"))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every message with one bit turned over.
    fn changed(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        (0..message.len() * 8).map(|bit| {
            let mut changed = message.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            changed
        })
    }

    #[test]
    fn no_message_is_taken_for_another_when_a_bit_is_wrong() {
        let key = || "attempt/0/address/1".to_owned();
        let value = b"an address".to_vec();
        for request in [
            Request::Set { key: key(), value },
            Request::Get { key: key(), timeout_ms: 2000 },
            Request::Add { key: key(), amount: 1 },
        ] {
            let mut message = Vec::new();
            request.write(&mut message).unwrap();
            let found = Request::read(&mut &message[..]).unwrap().unwrap();
            assert_eq!(format!("{found:?}"), format!("{request:?}"));
            for changed in changed(&message) {
                assert!(Request::read(&mut &changed[..]).is_err(), "{request:?}");
            }
        }
        for reply in [Reply::Done(7), Reply::Value(b"an address".to_vec()), Reply::TimedOut] {
            let mut message = Vec::new();
            reply.write(&mut message).unwrap();
            let found = Reply::read(&mut &message[..]).unwrap();
            assert_eq!(format!("{found:?}"), format!("{reply:?}"));
            for changed in changed(&message) {
                assert!(Reply::read(&mut &changed[..]).is_err(), "{reply:?}");
            }
        }
    }
}
