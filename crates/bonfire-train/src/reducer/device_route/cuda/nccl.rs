//! Buckets in memory that NCCL reads: of GPUs of any host.

use bonfire_gpu::NcclGroup;

use super::CudaEngine;
use super::group::{Own, ground, refusal};
use crate::reducer::device_route::Engine;
use crate::reducer::device_route::choice::{Fate, Refusal};
use crate::world::timeouts::WarmUp;

pub(super) fn form(ranks: &WarmUp, own: Own, fate: Fate) -> Result<Box<dyn Engine>, Refusal> {
    let (group, timeout) = ground(ranks, fate)?;
    let group = NcclGroup::new(group, &own.context, timeout).map_err(refusal)?;
    Ok(Box::new(CudaEngine::new(group, own)?))
}

/// The engine of ranks on several hosts with an automatic route. If it cannot be formed, rank 0 warns of the cost and
/// names the packages to install.
pub(super) fn between_hosts(
    ranks: &WarmUp,
    own: Own,
    fate: Fate,
) -> Result<Box<dyn Engine>, Refusal> {
    let formed = form(ranks, own, fate);
    if let (Err(Refusal::NoWay(reason)), 0) = (&formed, ranks.rank().get()) {
        tracing::warn!(
            rank = 0,
            reason,
            "gradients of GPUs on several hosts are staged through host memory: in each step every GPU copies all of its \
             gradients there and the averages back, CPUs add them up, and TCP carries them between hosts; with NCCL \
             they would go from GPU to GPU. GradientRoute::Host asks for this way without a warning"
        );
    }
    formed
}
