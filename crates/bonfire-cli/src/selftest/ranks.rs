//! Ranks as threads, on the devices in turn.

use bonfire_collective::{Algorithm, FoldOrder, GroupOptions, ProcessGroup, WorldSize};
use bonfire_gpu::{CudaGroup, CudaOptions, Neighbours};

use crate::bench::as_threads;
use crate::gpu::devices::context_of;

/// Runs `body` once per rank; the results in rank order.
pub(super) fn on_threads<R: Send>(
    ranks: u32,
    options: &CudaOptions,
    body: impl Fn(CudaGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    on_threads_adding(FoldOrder::Canonical, ranks, options, body)
}

pub(super) fn on_threads_adding<R: Send>(
    order: FoldOrder,
    ranks: u32,
    options: &CudaOptions,
    body: impl Fn(CudaGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    // On the CPU in the canonical order, which the direct engine must reproduce.
    let group_options =
        GroupOptions::default().with_algorithm(Some(Algorithm::OneShot)).with_order(order);
    let groups = ProcessGroup::local(WorldSize::new(ranks)?, group_options)?;
    let neighbours = Neighbours::new();
    as_threads(groups, |group| {
        let context = context_of(group.rank().get())?;
        let options = options.clone();
        body(CudaGroup::new(group, &context, &neighbours, options)?)
    })
}
