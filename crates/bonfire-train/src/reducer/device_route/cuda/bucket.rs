//! One bucket in the memory of a device.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bonfire_gpu::{Context, CudaError, DeviceRegion, Elements, Span};
use bonfire_kernels::launch::stream::{Direction, PackTable};
use bonfire_plan::DType;

use super::group::GpuGroup;
use crate::reducer::device_route::{Source, Table};

#[derive(Debug)]
pub(super) struct CudaBucket<G: GpuGroup> {
    pub(super) dtype: DType,
    pub(super) elems: usize,
    /// Shared with other buckets if only a block is kept.
    pub(super) buffer: Arc<G::Buffer>,
    pub(super) block: Option<Block>,
    /// Sums of earlier micro-batches, once there were some.
    pub(super) kept: Option<Span>,
    pub(super) tables: HashMap<(Table, Direction), PackTable>,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) elems: Range<usize>,
    pub(super) memory: Span,
}

impl<G: GpuGroup> CudaBucket<G> {
    pub(super) fn elements(&self, range: Range<usize>) -> Elements {
        Elements { dtype: self.dtype, range }
    }

    pub(super) fn part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        G::span(&self.buffer).part(self.bytes_of(range))
    }

    /// Elements of what they are copied from.
    pub(super) fn source(&self, source: Source, range: &Range<usize>) -> Result<Span, CudaError> {
        match source {
            Source::Bucket => self.part(range),
            Source::Block => {
                let Block { elems, memory } = self.block.as_ref().expect("it was stored");
                let (start, end) = (range.start - elems.start, range.end - elems.start);
                memory.part(self.bytes_of(&(start..end)))
            }
        }
    }

    pub(super) fn kept_part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        let kept = self.kept.as_ref();
        kept.expect("something was kept before").part(self.bytes_of(range))
    }

    pub(super) fn make_kept(&mut self, context: &Context) -> Result<(), CudaError> {
        if self.kept.is_none() {
            let bytes = self.bytes_of(&(0..self.elems)).end.max(1);
            self.kept = Some(DeviceRegion::allocate(context, bytes)?.span());
        }
        Ok(())
    }

    fn bytes_of(&self, range: &Range<usize>) -> Range<usize> {
        let size = self.dtype.size_bytes();
        range.start * size..range.end * size
    }
}
