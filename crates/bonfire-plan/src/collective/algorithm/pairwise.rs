//! Pairwise all-to-all: in round k the ranks whose numbers add up to k, modulo n, exchange the
//! blocks that they have for each other.
//!
//! Every two ranks meet in exactly one round, and every rank meets one other, or nobody, in each.
//!
//! No deadlock, even with one slot: order all work by (round, chunk); each link is used in one round
//! only, and within it `pairs::exchange` has none.

use super::shared::chunking::Chunking;
use super::shared::pairs::{self, Meeting};
use crate::{Rank, Step};

pub(crate) fn all_to_all(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let peers = world.ranks().map(|round| world.behind(round, rank.get()));
    for peer in peers.filter(|&peer| peer != rank) {
        let (outgoing, incoming) =
            (chunking.block_between(rank, peer), chunking.block_between(peer, rank));
        pairs::exchange(chunking, Meeting::with(peer, outgoing, incoming), steps);
    }
}
