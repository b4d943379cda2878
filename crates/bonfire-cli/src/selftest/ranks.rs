//! Ranks as threads, on the devices in turn.

use std::thread;

use bonfire_collective::{Algorithm, FoldOrder, GroupOptions, ProcessGroup, WorldSize};
use bonfire_gpu::{CudaGroup, CudaOptions, Neighbours};

use crate::gpu::devices::context_of;

/// Runs `body` once per rank; the results in rank order.
pub(super) fn on_threads<R: Send>(
    ranks: u32,
    options: &CudaOptions,
    body: impl Fn(CudaGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    on_threads_adding(FoldOrder::Canonical, ranks, options, body)
}

/// [`on_threads`] where additions may be done in this order.
pub(super) fn on_threads_adding<R: Send>(
    order: FoldOrder,
    ranks: u32,
    options: &CudaOptions,
    body: impl Fn(CudaGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    // On the CPU in the canonical order, which the direct engine must reproduce.
    let group_options = GroupOptions::default()
        .with_algorithm(Some(Algorithm::OneShot))
        .with_order(order);
    let groups = ProcessGroup::local(WorldSize::new(ranks)?, group_options)?;
    let neighbours = Neighbours::new();
    let neighbours = &neighbours;
    as_threads(groups, |group| {
        let context = context_of(group.rank().get())?;
        body(CudaGroup::new(
            group,
            &context,
            neighbours,
            options.clone(),
        )?)
    })
}

/// Runs `body` once per group, each on a thread; the results in their order.
pub(super) fn as_threads<R: Send>(
    groups: Vec<ProcessGroup>,
    body: impl Fn(ProcessGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || body(group)))
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
