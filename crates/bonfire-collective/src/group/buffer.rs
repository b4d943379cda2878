//! Memory that a group works on: any slice, and buffers in memory that its ranks share.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bonfire_sys::Block;
use bytemuck::Pod;

use crate::Element;

/// Elements in memory that the other ranks of a group can reach, so that a collective reduces them in place and
/// copies nothing. Made by [`ProcessGroup::buffer`](crate::ProcessGroup::buffer); used like a slice.
///
/// In a group of threads every slice is such memory. In a group of processes of one host the buffer lies in a region
/// that all of them map; any part of it may be passed to an operation. Where ranks are on several hosts it is
/// ordinary memory. If some ranks pass such memory and others do not, the operation copies; the result is the same.
pub struct GroupBuffer<T>(Memory<T>);

enum Memory<T> {
    Shared(Block<T>),
    Own(Vec<T>),
}

impl<T: Element + Pod> GroupBuffer<T> {
    pub(crate) fn shared(block: Block<T>) -> Self {
        Self(Memory::Shared(block))
    }

    pub(crate) fn own(len: usize) -> Self {
        vec![T::zeroed(); len].into()
    }

    /// The memory itself, for those who have devices copy from and to it: the block that all ranks map, or
    /// else the ordinary memory.
    ///
    /// # Errors
    /// The ordinary memory.
    pub fn into_memory(self) -> Result<Block<T>, Vec<T>> {
        match self.0 {
            Memory::Shared(block) => Ok(block),
            Memory::Own(elements) => Err(elements),
        }
    }
}

/// Ordinary memory, for elements that need not be shared.
impl<T: Element + Pod> From<Vec<T>> for GroupBuffer<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Memory::Own(elements))
    }
}

impl<T: Element + Pod> Deref for GroupBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Memory::Shared(block) => block,
            Memory::Own(elements) => elements,
        }
    }
}

impl<T: Element + Pod> DerefMut for GroupBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Memory::Shared(block) => block,
            Memory::Own(elements) => elements,
        }
    }
}

impl<T: Element + Pod + fmt::Debug> fmt::Debug for GroupBuffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}
