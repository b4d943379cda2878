//! Buckets in memory that the GPUs of one host open to each other.

use bonfire_gpu::{CudaGroup, CudaOptions, CudaPath, Neighbours};

use super::CudaEngine;
use super::group::{Own, ground, refusal};
use crate::reducer::device_route::Engine;
use crate::reducer::device_route::choice::{Fate, Refusal};
use crate::world::timeouts::WarmUp;

pub(super) fn form(ranks: &WarmUp, own: Own, fate: Fate) -> Result<Box<dyn Engine>, Refusal> {
    let (group, timeout) = ground(ranks, fate)?;
    let options = CudaOptions::default().with_timeout(timeout);
    let neighbours = Neighbours::of(&group);
    let group = CudaGroup::new(group, &own.context, &neighbours, options).map_err(refusal)?;
    if group.path() == CudaPath::Host {
        let reason = "the devices do not reach each other's memory".to_owned();
        return Err(Refusal::NoWay(reason));
    }
    Ok(Box::new(CudaEngine::new(group, own)?))
}
