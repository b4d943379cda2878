//! Memory that a group keeps for itself: packed tensors, and inputs that must not be changed.

use bonfire_sys::Arena;
use bytemuck::Pod;

use crate::{Element, GroupBuffer};

/// One buffer, used again by every operation that needs one; as long as the longest so far.
#[derive(Debug)]
pub(super) struct Scratch {
    arena: Option<Arena>,
    words: GroupBuffer<u64>,
}

impl Scratch {
    pub(super) fn new(arena: Option<Arena>) -> Self {
        Self { arena, words: GroupBuffer::own(0) }
    }

    /// Room for `len` elements, of unspecified content; shared with the other ranks if it can be.
    pub(super) fn elements<T: Element + Pod>(&mut self, len: usize) -> &mut [T] {
        let words = (len * size_of::<T>()).div_ceil(size_of::<u64>());
        if self.words.len() < words {
            let shared = self.arena.as_ref().map(|arena| arena.allocate(words));
            self.words = match shared {
                Some(Ok(block)) => GroupBuffer::shared(block),
                // Without shared memory the operation copies.
                Some(Err(_)) | None => GroupBuffer::own(words),
            };
        }
        &mut bytemuck::cast_slice_mut(&mut self.words)[..len]
    }
}
