//! Buckets in memory that NCCL reads: of GPUs of any host.

use bonfire_gpu::NcclGroup;

use super::CudaEngine;
use super::group::{Own, ground, refusal};
use crate::reducer::device_route::Engine;
use crate::reducer::device_route::choice::Refusal;
use crate::world::patience::WarmUp;

/// The engine of all ranks.
pub(super) fn form(ranks: &WarmUp, own: Own) -> Result<Box<dyn Engine>, Refusal> {
    let (group, timeout) = ground(ranks)?;
    let group = NcclGroup::new(group, &own.context, timeout).map_err(refusal)?;
    Ok(Box::new(CudaEngine::new(group, own)?))
}
