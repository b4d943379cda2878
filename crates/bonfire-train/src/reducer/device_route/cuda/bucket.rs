//! One bucket in the memory of a device.

use std::ops::Range;

use bonfire_gpu::{Context, CudaError, DeviceRegion, Elements, Span};
use bonfire_kernels::launch::stream::PackTable;
use bonfire_plan::DType;

use super::group::GpuGroup;

#[derive(Debug)]
pub(super) struct CudaBucket<G: GpuGroup> {
    pub(super) dtype: DType,
    pub(super) elems: usize,
    pub(super) buffer: G::Buffer,
    /// Sums of earlier micro-batches, once there were some.
    pub(super) kept: Option<Span>,
    pub(super) packing: PackTable,
    pub(super) unpacking: PackTable,
}

impl<G: GpuGroup> CudaBucket<G> {
    pub(super) fn elements(&self) -> Elements {
        Elements::first(self.dtype, self.elems)
    }

    pub(super) fn part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        G::span(&self.buffer).part(self.bytes_of(range))
    }

    pub(super) fn kept_part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        let kept = self.kept.as_ref();
        kept.expect("something was kept before").part(self.bytes_of(range))
    }

    pub(super) fn make_kept(&mut self, context: &Context) -> Result<(), CudaError> {
        if self.kept.is_none() {
            let bytes = G::span(&self.buffer).len();
            self.kept = Some(DeviceRegion::allocate(context, bytes)?.span());
        }
        Ok(())
    }

    fn bytes_of(&self, range: &Range<usize>) -> Range<usize> {
        let size = self.dtype.size_bytes();
        range.start * size..range.end * size
    }
}
