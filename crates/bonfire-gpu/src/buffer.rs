//! Memory that a collective works on, and ranges of elements in it.

use std::ops::Range;
use std::sync::Arc;

use bonfire_cuda::Span;
use bonfire_plan::{DType, ElemRange, Rank};

use super::error::CudaGroupError;
use super::group::Inner;
use super::shared::Shared;
use bonfire_collective::Element;

/// Device memory of the same size on every rank, open to all of them where devices reach each other.
///
/// It keeps the group. Its memory is freed with the group, because freeing waits for the device, where
/// other ranks may be waiting for this one; [`CudaGroup::release`](super::CudaGroup::release) frees it
/// before, with all ranks.
#[derive(Debug)]
pub struct CudaBuffer {
    memory: Shared,
    owner: Arc<Inner>,
}

/// Which elements of a buffer an operation is about: the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Their type.
    pub dtype: DType,
    /// Which, counted in elements of that type from the start of the buffer.
    pub range: Range<usize>,
}

impl CudaBuffer {
    pub(super) fn new(memory: Shared, owner: &Arc<Inner>) -> Self {
        Self {
            memory,
            owner: Arc::clone(owner),
        }
    }

    /// Takes the memory out, to be freed by the caller.
    pub(super) fn into_memory(mut self) -> Shared {
        self.memory.take()
    }

    /// Whether it belongs to this group.
    pub(super) fn is_of(&self, group: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.owner, group)
    }

    /// This rank's memory, for kernels and copies of its own. No collective may be running on it.
    pub fn span(&self) -> &Span {
        self.memory.own()
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.span().len()
    }

    /// A range of elements, counted from `elements.range.start`, on one rank.
    pub(super) fn part(&self, rank: Rank, elements: &Elements, range: ElemRange) -> Span {
        elements.range_of(self.memory.of(rank), range)
    }

    /// This rank's elements.
    pub(super) fn own_part(&self, elements: &Elements) -> Span {
        elements.part_of(self.memory.own())
    }

    /// That the elements are in it.
    pub(super) fn check(&self, elements: &Elements) -> Result<(), CudaGroupError> {
        elements.fit(self.bytes())
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        self.owner.retire(self.memory.take());
    }
}

impl Elements {
    /// The first `count` elements.
    pub fn first(dtype: DType, count: usize) -> Self {
        Self {
            dtype,
            range: 0..count,
        }
    }

    /// `count` elements of this type from element `start` on.
    pub(super) fn at<T: Element>(start: usize, count: usize) -> Self {
        Self {
            dtype: T::DTYPE,
            range: start..start.saturating_add(count),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.range.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size_bytes()
    }

    /// That they are in so many bytes.
    pub(super) fn fit(&self, bytes: usize) -> Result<(), CudaGroupError> {
        let Range { start, end } = self.range;
        let dtype_bytes = self.dtype.size_bytes();
        let fits = end
            .checked_mul(dtype_bytes)
            .is_some_and(|needed| needed <= bytes);
        if start > end || !fits {
            return Err(CudaGroupError::TooSmall {
                start,
                end,
                dtype_bytes,
                bytes,
            });
        }
        Ok(())
    }

    /// Their memory in that of a buffer that they fit.
    pub(super) fn part_of(&self, buffer: &Span) -> Span {
        self.range_of(buffer, ElemRange::up_to(self.count()))
    }

    /// The memory of a range of them, counted from the first.
    fn range_of(&self, buffer: &Span, range: ElemRange) -> Span {
        let size = self.dtype.size_bytes();
        let start = (self.range.start + range.start()) * size;
        let end = (self.range.start + range.end()) * size;
        let part = buffer.part(start..end);
        part.expect("checked when the operation began")
    }
}
