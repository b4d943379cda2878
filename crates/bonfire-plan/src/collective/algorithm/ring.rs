//! Ring reduce-scatter and all-gather: shards pass from neighbour to neighbour.
//!
//! Both take n - 1 rounds in which every rank sends one shard to its next neighbour and receives another from its
//! previous one. They follow the bandwidth-optimal ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations" (2009); an all-reduce is one after the other.
//!
//! No deadlock, even with one slot: order all work by (round, chunk). A put waits only for the
//! release of an earlier place of that order, a wait only for a put of its own place.

use super::shared::chunking::Chunking;
use crate::{ElemRange, Rank, Source, Stage, Step};

/// The fold of shard j starts with rank j + 1 and ends with rank j, which then owns it.
pub(crate) fn reduce_scatter(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    if world.len() == 1 {
        let own = |target| Step::Reduce {
            target,
            sources: Box::new([Source::Own]),
            stage: Stage::Final,
        };
        steps.extend(chunking.of_block(rank).map(own));
        return;
    }
    let prev = world.prev(rank);
    let last_round = world.get() - 2;
    for round in 0..=last_round {
        let stage = if round == last_round {
            Stage::Final
        } else {
            Stage::Partial
        };
        let hop = Hop {
            sent: world.behind(rank, round + 1),
            received: world.behind(rank, round + 2),
        };
        exchange(chunking, rank, hop, steps, |target| Step::Reduce {
            target,
            sources: Box::new([Source::Inbox(prev), Source::Own]),
            stage,
        });
    }
}

/// Every rank starts with its own shard and passes on what it received in the round before.
pub(crate) fn all_gather(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let prev = world.prev(rank);
    for round in 0..world.get() - 1 {
        let hop = Hop {
            sent: world.behind(rank, round),
            received: world.behind(rank, round + 1),
        };
        exchange(chunking, rank, hop, steps, |target| Step::Copy {
            peer: prev,
            target,
        });
    }
}

/// The owners of the two shards that a rank handles in one round.
#[derive(Clone, Copy)]
struct Hop {
    sent: Rank,
    received: Rank,
}

/// One round: chunk by chunk, sends one shard to the next neighbour and takes another from the
/// previous one. The two may differ in their number of chunks.
fn exchange(
    chunking: &Chunking,
    rank: Rank,
    hop: Hop,
    steps: &mut Vec<Step>,
    take: impl Fn(ElemRange) -> Step,
) {
    let (prev, next) = (
        chunking.world_size.prev(rank),
        chunking.world_size.next(rank),
    );
    let mut sent = chunking.of_block(hop.sent);
    let mut received = chunking.of_block(hop.received);
    for _ in 0..sent.len().max(received.len()) {
        if let Some(source) = sent.next() {
            steps.push(Step::Put { peer: next, source });
        }
        if let Some(target) = received.next() {
            steps.push(Step::Wait { peer: prev });
            steps.push(take(target));
            steps.push(Step::Release { peer: prev });
        }
    }
}
