//! Ring reduce-scatter and all-gather: shards pass from neighbour to neighbour.
//!
//! Both take n - 1 rounds in which every rank sends one shard to its next neighbour and receives another from its
//! previous one. They follow the bandwidth-optimal ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations" (2009); an all-reduce is one after the other.
//!
//! No deadlock, even with one slot: order all work by (round, chunk). A put waits only for the
//! release of an earlier place of that order, a wait only for a put of its own place.

use super::shared::chunking::{Chunking, finish_alone};
use super::shared::pairs::{self, Meeting};
use crate::{Rank, Source, Stage, Step};

/// The fold of shard j starts with rank j + 1 and ends with rank j, which then owns it.
pub(crate) fn reduce_scatter(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    if world.len() == 1 {
        steps.extend(chunking.of_block(rank).map(finish_alone));
        return;
    }
    let last_round = world.get() - 2;
    for round in 0..=last_round {
        let stage = if round == last_round { Stage::Final } else { Stage::Partial };
        let meeting = meeting(chunking, rank, round + 1);
        pairs::exchange_with(chunking, meeting, steps, |target| Step::Reduce {
            target,
            sources: Box::new([Source::Inbox(meeting.from), Source::Own]),
            stage,
        });
    }
}

/// Every rank starts with its own shard and passes on what it received in the round before.
pub(crate) fn all_gather(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    for round in 0..chunking.world_size.get() - 1 {
        pairs::exchange(chunking, meeting(chunking, rank, round), steps);
    }
}

/// One round: sends the shard of the rank that is `behind` places back, and takes that of the rank before it.
fn meeting(chunking: &Chunking, rank: Rank, behind: u32) -> Meeting {
    let world = chunking.world_size;
    Meeting {
        to: world.next(rank),
        from: world.prev(rank),
        outgoing: chunking.block(world.behind(rank, behind)),
        incoming: chunking.block(world.behind(rank, behind + 1)),
    }
}
