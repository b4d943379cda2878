//! Buckets in memory that NCCL reads: of GPUs of any host.

use bonfire_collective::ReduceOp;
use bonfire_collective::cuda::{CudaGroupError, Elements, NcclBuffer, NcclGroup, Span};

use super::CudaEngine;
use super::group::{GpuGroup, Own, Place, ground, refusal};
use crate::device_route::Engine;
use crate::device_route::choice::Refusal;
use crate::patience::WarmUp;

/// The engine of all ranks.
pub(super) fn form(ranks: &WarmUp, own: Own) -> Result<Box<dyn Engine>, Refusal> {
    let (group, timeout) = ground(ranks)?;
    let group = NcclGroup::new(group, &own.context, timeout).map_err(refusal)?;
    Ok(Box::new(CudaEngine::new(group, own)?))
}

impl GpuGroup for NcclGroup {
    type Buffer = NcclBuffer;

    fn place(&self) -> Place {
        Place {
            context: self.context().clone(),
            stream: self.stream(),
            ranks: self.process_group().clone(),
            shares_a_context: self.shares_a_context(),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<NcclBuffer, CudaGroupError> {
        Self::allocate(self, bytes)
    }

    fn release(&self, buffer: NcclBuffer) -> Result<(), CudaGroupError> {
        Self::release(self, buffer)
    }

    fn span(buffer: &NcclBuffer) -> &Span {
        buffer.span()
    }

    fn average(&self, buffer: &NcclBuffer, elements: &Elements) -> Result<(), CudaGroupError> {
        self.all_reduce(buffer, elements, ReduceOp::Mean)
    }

    fn abort(&self, cause: &str) {
        Self::abort(self, cause);
    }
}
