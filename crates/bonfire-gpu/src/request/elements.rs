//! Ranges of elements in memory that a collective works on.

use std::ops::Range;

use bonfire_collective::Element;
use bonfire_cuda::Span;
use bonfire_plan::{DType, ElemRange};

use crate::error::{CudaGroupError, Result};

/// Which elements of a buffer an operation is about: the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    /// The type of the elements.
    pub dtype: DType,
    /// Which, counted in elements of that type from the start of the buffer.
    pub range: Range<usize>,
}

impl Elements {
    /// Returns the first `count` elements of a buffer.
    pub fn first(dtype: DType, count: usize) -> Self {
        Self { dtype, range: 0..count }
    }

    /// Returns `count` elements of this type from element `start` on.
    pub fn at<T: Element>(start: usize, count: usize) -> Self {
        Self { dtype: T::DTYPE, range: start..start.saturating_add(count) }
    }

    /// How many elements there are.
    pub fn count(&self) -> usize {
        self.range.len()
    }

    /// The bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size_bytes()
    }

    /// Checks that they are in a buffer of `bytes` bytes.
    pub(crate) fn fit(&self, bytes: usize) -> Result<()> {
        let Range { start, end } = self.range;
        let dtype_bytes = self.dtype.size_bytes();
        let fits = end.checked_mul(dtype_bytes).is_some_and(|needed| needed <= bytes);
        if start > end || !fits {
            return Err(CudaGroupError::TooSmall { start, end, dtype_bytes, bytes });
        }
        Ok(())
    }

    pub(crate) fn part_of(&self, buffer: &Span) -> Span {
        self.range_of(buffer, ElemRange::up_to(self.count()))
    }

    /// The memory of a range of them, counted from the first.
    pub(crate) fn range_of(&self, buffer: &Span, range: ElemRange) -> Span {
        let size = self.dtype.size_bytes();
        let start = (self.range.start + range.start()) * size;
        let end = (self.range.start + range.end()) * size;
        let part = buffer.part(start..end);
        part.expect("checked when the operation began")
    }
}

/// Reads elements from as many bytes as they have.
pub(crate) fn decode<T: Element>(bytes: &[u8], values: &mut [T]) -> Result<()> {
    let elements = bytes.chunks_exact(size_of::<T>());
    for (index, (value, own)) in values.iter_mut().zip(elements).enumerate() {
        *value = bytemuck::checked::try_pod_read_unaligned(own)
            .map_err(|_| CudaGroupError::NotAValue { index })?;
    }
    Ok(())
}
