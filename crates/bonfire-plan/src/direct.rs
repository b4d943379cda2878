//! Direct plans: every rank reaches every other in one hop.
//!
//! Every fold runs over ranks 0 to n - 1 in that order, in one step, with one rounding: the
//! canonical order. The bits of an element depend on nothing but the ranks' values, whatever the
//! buffer it lies in and however it is chunked.
//!
//! No deadlock, even with one slot: order all work by chunk index. A put waits only for a release
//! of an earlier index, a wait only for a put of its own index.

use crate::schedule::ScheduleShape;
use crate::{ElemRange, Rank, Source, Stage, Step, WorldSize};

/// One shot: everyone sends everything to everyone, and everyone folds everything.
pub(crate) fn all_reduce(shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    let world = shape.world_size;
    for chunk in shape.buffer_chunks() {
        steps.extend(world.peers(rank).map(|peer| Step::Put {
            peer,
            source: chunk,
        }));
        fold(world, rank, chunk, steps);
    }
}

/// Everyone sends each shard to its owner, which folds it.
pub(crate) fn reduce_scatter(shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    let world = shape.world_size;
    let mut own = shape.shard_chunks(rank);
    let mut outgoing: Vec<_> = world
        .peers(rank)
        .map(|peer| (peer, shape.shard_chunks(peer)))
        .collect();
    for _ in 0..most_chunks(shape) {
        for (peer, shard) in &mut outgoing {
            steps.extend(shard.next().map(|source| Step::Put {
                peer: *peer,
                source,
            }));
        }
        if let Some(target) = own.next() {
            fold(world, rank, target, steps);
        }
    }
}

/// Every owner sends its shard to everyone.
pub(crate) fn all_gather(shape: &ScheduleShape, rank: Rank, steps: &mut Vec<Step>) {
    let world = shape.world_size;
    let mut own = shape.shard_chunks(rank);
    // Nearest sender first: the one behind this rank puts to it first.
    let mut incoming: Vec<_> = world
        .peers(rank)
        .rev()
        .map(|peer| (peer, shape.shard_chunks(peer)))
        .collect();
    for _ in 0..most_chunks(shape) {
        if let Some(source) = own.next() {
            steps.extend(world.peers(rank).map(|peer| Step::Put { peer, source }));
        }
        for (peer, shard) in &mut incoming {
            let peer = *peer;
            if let Some(target) = shard.next() {
                steps.push(Step::Wait { peer });
                steps.push(Step::Copy { peer, target });
                steps.push(Step::Release { peer });
            }
        }
    }
}

/// The chunks of the longest shard, which is rank 0's.
fn most_chunks(shape: &ScheduleShape) -> usize {
    shape.shard_chunks(Rank::new(0)).len()
}

/// Waits for one frame of every peer, and folds them with this rank's own data in rank order.
fn fold(world: WorldSize, rank: Rank, target: ElemRange, steps: &mut Vec<Step>) {
    steps.extend(world.peers(rank).rev().map(|peer| Step::Wait { peer }));
    let source = |peer| {
        if peer == rank {
            Source::Own
        } else {
            Source::Inbox(peer)
        }
    };
    let sources = world.ranks().map(source).collect();
    steps.push(Step::Reduce {
        target,
        sources,
        stage: Stage::Final,
    });
    steps.extend(world.peers(rank).rev().map(|peer| Step::Release { peer }));
}
