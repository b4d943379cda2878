//! The memory of a measurement: one piece, of which each operation has a part of its own.

use std::fmt;
use std::str::FromStr;

use bonfire_collective::{CollectiveError, GroupBuffer, ProcessGroup};
use bonfire_plan::UnknownName;

use super::data::Value;

const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In the memory that the ranks of a group share, as buckets are.
    Region,
    /// In this rank's own memory.
    Private,
}

impl Home {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Private => "private",
        }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Home {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find("kind of memory", text, &[Self::Region, Self::Private])
    }
}

pub(super) struct Buffers<T> {
    memory: Memory<T>,
    len: usize,
    stride: usize,
}

enum Memory<T> {
    Region(GroupBuffer<T>),
    Private(Vec<T>),
}

impl<T: Value> Buffers<T> {
    pub(super) fn new(
        group: &ProcessGroup,
        buffers: usize,
        home: Home,
        len: usize,
    ) -> Result<Self, CollectiveError> {
        let line = (LINE_BYTES / size_of::<T>()).max(1);
        let stride = len.next_multiple_of(line);
        let total = buffers * stride;
        let mut memory = match home {
            Home::Region => Memory::Region(group.buffer(total)?),
            Home::Private => Memory::Private(vec![T::zeroed(); total]),
        };
        // Zeros may be pages that are not there before they are written.
        memory.elements().fill(T::from_number(1));
        Ok(Self { memory, len, stride })
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut [T] {
        let start = index * self.stride;
        &mut self.memory.elements()[start..start + self.len]
    }
}

impl<T: Value> Memory<T> {
    fn elements(&mut self) -> &mut [T] {
        match self {
            Self::Region(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}
