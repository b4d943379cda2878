//! Zero-copy plans: between two barriers every rank works on its own shard of everyone's buffers, where they are.
//!
//! Rank r reads and writes shard r and nothing else, so no two ranks touch one element, and every
//! element crosses the memory bus once for each buffer that it is read from or written to. The first
//! barrier says that all buffers are filled, the second that all results are written. Folds run over
//! ranks 0 to n - 1 in that order, in one step with one rounding: the canonical order.
//!
//! No deadlock, even with one slot: the barriers use each link once each, in the same order on both
//! of its ends, and everything of the first comes before everything of the second.

use super::dissemination;
use super::shared::chunking::Chunking;
use crate::{Collective, Rank, Stage, Step};

pub(crate) fn build(chunking: &Chunking, of: Collective, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let everyone = || world.ranks().collect::<Box<[Rank]>>();
    let others = |than: Rank| world.ranks().filter(|&peer| peer != than).collect();
    let (sources, targets, stage): (Box<[Rank]>, Box<[Rank]>, Stage) = match of {
        Collective::AllReduce => (everyone(), everyone(), Stage::Final),
        Collective::ReduceScatter => (everyone(), Box::new([rank]), Stage::Final),
        Collective::Reduce { root } => (everyone(), Box::new([root]), Stage::Final),
        Collective::AllGather => (Box::new([rank]), others(rank), Stage::Partial),
        Collective::Broadcast { root } => (Box::new([root]), others(root), Stage::Partial),
        other => unreachable!("Schedule::new refuses {other} by zero_copy"),
    };
    dissemination::barrier(world, rank, steps);
    let own = chunking.of_block(rank);
    // A copy in a world of one has nowhere to go, and an empty shard needs no step.
    for range in own.filter(|range| !range.is_empty() && !targets.is_empty()) {
        steps.push(Step::ReduceDirect {
            range,
            sources: sources.clone(),
            targets: targets.clone(),
            stage,
        });
    }
    dissemination::barrier(world, rank, steps);
}
