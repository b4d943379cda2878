//! Memory that a collective works on, and ranges of elements in it.

use std::ops::Range;
use std::sync::Arc;

use bonfire_plan::{DType, ElemRange};
use bonfire_sys::cuda::Span;

use super::error::CudaGroupError;
use super::group::Inner;

/// Device memory of the same size on every rank, open to all of them.
///
/// It keeps the group. Its memory is freed with the group, because freeing waits for the device, where
/// other ranks may be waiting for this one; [`CudaGroup::release`](super::CudaGroup::release) frees it
/// before, with all ranks.
#[derive(Debug)]
pub struct CudaBuffer {
    spans: Vec<Span>,
    me: usize,
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
    pub(super) fn new(spans: Vec<Span>, owner: &Arc<Inner>) -> Self {
        Self {
            spans,
            me: owner.rank().index(),
            owner: Arc::clone(owner),
        }
    }

    /// Takes the memory out, to be freed by the caller.
    pub(super) fn into_spans(mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    /// Whether it belongs to this group.
    pub(super) fn is_of(&self, group: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.owner, group)
    }

    /// This rank's memory, for kernels and copies of its own. No collective may be running on it.
    pub fn span(&self) -> &Span {
        &self.spans[self.me]
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.span().len()
    }

    /// A range of elements, counted from `elements.range.start`, on one rank.
    pub(super) fn part(&self, rank: usize, elements: &Elements, range: ElemRange) -> Span {
        let size = elements.dtype.size_bytes();
        let start = (elements.range.start + range.start()) * size;
        let end = (elements.range.start + range.end()) * size;
        self.spans[rank]
            .part(start..end)
            .expect("checked when the operation began")
    }

    /// That the elements are in it.
    pub(super) fn check(&self, elements: &Elements) -> Result<(), CudaGroupError> {
        let Range { start, end } = elements.range;
        let dtype_bytes = elements.dtype.size_bytes();
        let fits = end
            .checked_mul(dtype_bytes)
            .is_some_and(|bytes| bytes <= self.bytes());
        if start > end || !fits {
            return Err(CudaGroupError::TooSmall {
                start,
                end,
                dtype_bytes,
                bytes: self.bytes(),
            });
        }
        Ok(())
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        self.owner.retire(std::mem::take(&mut self.spans));
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.range.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size_bytes()
    }
}
