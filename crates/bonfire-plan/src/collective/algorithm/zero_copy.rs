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
use crate::{Rank, Stage, Step};

/// What happens to each shard.
#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// It is folded over all ranks, and everyone gets the result.
    AllReduce,
    /// It is folded over all ranks, for its owner.
    ReduceScatter,
    /// It is folded over all ranks, for the root.
    Reduce { root: Rank },
    /// Everyone gets the owner's shard.
    AllGather,
    /// Everyone gets the root's shard.
    Broadcast { root: Rank },
}

pub(crate) fn build(chunking: &Chunking, between: Between, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let everyone = || world.ranks().collect::<Box<[Rank]>>();
    let others = |than: Rank| world.ranks().filter(|&peer| peer != than).collect();
    let (sources, targets, stage): (Box<[Rank]>, Box<[Rank]>, Stage) = match between {
        Between::AllReduce => (everyone(), everyone(), Stage::Final),
        Between::ReduceScatter => (everyone(), Box::new([rank]), Stage::Final),
        Between::Reduce { root } => (everyone(), Box::new([root]), Stage::Final),
        Between::AllGather => (Box::new([rank]), others(rank), Stage::Partial),
        Between::Broadcast { root } => (Box::new([root]), others(root), Stage::Partial),
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
