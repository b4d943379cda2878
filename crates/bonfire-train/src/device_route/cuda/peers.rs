//! Buckets in memory that the GPUs of one host open to each other.

use bonfire_collective::ReduceOp;
use bonfire_collective::cuda::{
    CudaBuffer, CudaGroup, CudaGroupError, CudaOptions, CudaPath, Elements, Neighbours, Span,
};

use super::CudaEngine;
use super::group::{GpuGroup, Own, Place, ground, refusal};
use crate::device_route::Engine;
use crate::device_route::choice::Refusal;
use crate::patience::WarmUp;

/// The engine of all ranks.
pub(super) fn form(ranks: &WarmUp, own: Own) -> Result<Box<dyn Engine>, Refusal> {
    let (group, timeout) = ground(ranks)?;
    let options = CudaOptions {
        timeout,
        ..CudaOptions::default()
    };
    let neighbours = Neighbours::of(&group);
    let group = CudaGroup::new(group, &own.context, &neighbours, options).map_err(refusal)?;
    if group.path() == CudaPath::Host {
        let reason = "the devices do not reach each other's memory".to_owned();
        return Err(Refusal::NoWay(reason));
    }
    Ok(Box::new(CudaEngine::new(group, own)?))
}

impl GpuGroup for CudaGroup {
    type Buffer = CudaBuffer;

    fn place(&self) -> Place {
        Place {
            context: self.context().clone(),
            stream: self.stream(),
            ranks: self.process_group().clone(),
            shares_a_context: self.shares_a_context(),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<CudaBuffer, CudaGroupError> {
        Self::allocate(self, bytes)
    }

    fn release(&self, buffer: CudaBuffer) -> Result<(), CudaGroupError> {
        Self::release(self, buffer)
    }

    fn span(buffer: &CudaBuffer) -> &Span {
        buffer.span()
    }

    fn average(&self, buffer: &CudaBuffer, elements: &Elements) -> Result<(), CudaGroupError> {
        self.all_reduce(buffer, elements, ReduceOp::Mean)
    }

    fn abort(&self, cause: &str) {
        Self::abort(self, cause);
    }
}
