//! The frames between a store client and its server.
//!
//! A request is `verb u8 | key length u32 | value length u32 | number i64 | key | value`; the number
//! is the amount for `add` and the timeout in milliseconds for `get`. A reply is
//! `status u8 | length u32 | number i64 | bytes`. Lengths are checked before anything is allocated.

use std::io::{self, Read, Write};

use super::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

#[derive(Debug)]
pub(crate) enum Request {
    Set { key: String, value: Vec<u8> },
    Get { key: String, timeout_ms: u64 },
    Add { key: String, amount: i64 },
}

#[derive(Debug)]
pub(crate) enum Reply {
    Done(i64),
    Value(Vec<u8>),
    TimedOut,
}

impl Request {
    pub(crate) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
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
        frame.extend_from_slice(key.as_bytes());
        frame.extend_from_slice(value);
        stream.write_all(&frame)
    }

    /// `None` when the client hung up between two requests.
    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; 17];
        if !read_or_end(stream, &mut head)? {
            return Ok(None);
        }
        let key_bytes = u32_at(&head, 1) as usize;
        let value_bytes = u32_at(&head, 5) as usize;
        let number = i64_at(&head, 9);
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(invalid("request longer than the store takes"));
        }
        let key = String::from_utf8(read_bytes(stream, key_bytes)?)
            .map_err(|_| invalid("key is not UTF-8"))?;
        let value = read_bytes(stream, value_bytes)?;
        Ok(Some(match head[0] {
            1 => Self::Set { key, value },
            2 => Self::Get {
                key,
                timeout_ms: u64::try_from(number).unwrap_or(0),
            },
            3 => Self::Add {
                key,
                amount: number,
            },
            _ => return Err(invalid("unknown verb")),
        }))
    }
}

impl Reply {
    pub(crate) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let (status, number, bytes): (u8, i64, &[u8]) = match self {
            Self::Done(number) => (1, *number, &[]),
            Self::Value(bytes) => (2, 0, bytes),
            Self::TimedOut => (3, 0, &[]),
        };
        let mut frame = vec![status];
        frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        frame.extend_from_slice(&number.to_le_bytes());
        frame.extend_from_slice(bytes);
        stream.write_all(&frame)
    }

    pub(crate) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 13];
        stream.read_exact(&mut head)?;
        let len = u32_at(&head, 1) as usize;
        if len > VALUE_BYTES_MAX {
            return Err(invalid("reply longer than the store gives"));
        }
        let bytes = read_bytes(stream, len)?;
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

fn read_bytes(stream: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
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
