//! What the ranks of a communicator send to each other.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::process;

use super::operation::Data;
use crate::driver::memory::{find, object_of, open_object};

/// From one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// It has joined, on this device.
    Here(u64),
    /// These data are there to be read.
    Offer(Lane, Offer),
    /// The oldest data that were offered have been read.
    Taken(Lane),
    /// Ranks asked for different things: the communicator is of no use any more.
    Broken,
}

/// What an offer belongs to: each kind comes in an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// An operation of all ranks.
    Together = 0,
    /// A message between two ranks.
    Message = 1,
}

/// Data of a rank, and the number of what it wants to be done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) what: u64,
    pub(super) place: Place,
}

/// Where data are: in a memory object that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    process: u64,
    descriptor: u64,
    offset: u64,
    pub(super) bytes: u64,
}

/// What came by one lane from one rank, and went.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) offers: VecDeque<Offer>,
    pub(super) sent: u64,
    pub(super) taken: u64,
}

/// Numbers in a note: its kind, who wrote it, and what it says.
const WORDS: usize = 8;

pub(super) const BYTES: usize = 8 * WORDS;

impl Place {
    /// Where a device of this process has them; `None` if they are gone.
    pub(super) fn of(data: Data) -> Option<Self> {
        let (base, _) = find(data.address, data.bytes)?;
        let (descriptor, _) = object_of(base)?;
        Some(Self {
            process: process::id().into(),
            descriptor: descriptor.try_into().ok()?,
            offset: data.address - base,
            bytes: data.bytes as u64,
        })
    }

    /// The data. Fails where their owner has freed them or is dead.
    pub(super) fn read(self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes as usize];
        let object = open_object(self.process as u32, self.descriptor as i32)?;
        object.read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes)
    }
}

impl Note {
    pub(super) fn to_bytes(self, from: usize) -> [u8; BYTES] {
        let from = from as u64;
        let words: [u64; WORDS] = match self {
            Self::Here(device) => [0, from, device, 0, 0, 0, 0, 0],
            Self::Offer(lane, Offer { what, place }) => [
                1,
                from,
                lane as u64,
                what,
                place.process,
                place.descriptor,
                place.offset,
                place.bytes,
            ],
            Self::Taken(lane) => [2, from, lane as u64, 0, 0, 0, 0, 0],
            Self::Broken => [3, from, 0, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; BYTES];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Who wrote it, and what.
    pub(super) fn from_bytes(bytes: &[u8; BYTES]) -> Option<(usize, Self)> {
        let mut words = [0; WORDS];
        for (word, slot) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*slot);
        }
        let [kind, from, first, what, process, descriptor, offset, bytes] = words;
        let lane = match first {
            0 => Lane::Together,
            _ => Lane::Message,
        };
        let place = Place { process, descriptor, offset, bytes };
        let note = match kind {
            0 => Self::Here(first),
            1 => Self::Offer(lane, Offer { what, place }),
            2 => Self::Taken(lane),
            3 => Self::Broken,
            _ => return None,
        };
        Some((from as usize, note))
    }
}
