//! Direct plans: every rank reaches every other in one hop.
//!
//! Every fold runs over ranks 0 to n - 1 in that order, in one step, with one rounding: the canonical order. The bits
//! of an element depend on nothing but the ranks' values, whatever the buffer it lies in and however it is chunked.
//!
//! No deadlock, even with one slot: order all work by chunk index. A put waits only for a release
//! of an earlier index, a wait only for a put of its own index.

use super::shared::chunking::{self, Chunking};
use super::shared::pairs;
use super::shared::tree::Place;
use crate::{ElemRange, Rank, Stage, Step, WorldSize};

/// One shot: everyone sends everything to everyone, and everyone folds everything.
pub(crate) fn all_reduce(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    for source in chunking.of_buffer() {
        steps.extend(world.peers(rank).map(|peer| Step::Put { peer, source }));
        fold(world, rank, source, steps);
    }
}

pub(crate) fn reduce(chunking: &Chunking, Place { root, rank }: Place, steps: &mut Vec<Step>) {
    if rank != root {
        return pairs::send(chunking, root, chunking.buffer, steps);
    }
    for chunk in chunking.of_buffer() {
        fold(chunking.world_size, rank, chunk, steps);
    }
}

/// The root sends every shard to its owner, who passes it on to everyone else. Each chunk is passed
/// on as soon as it is there.
pub(crate) fn broadcast(chunking: &Chunking, Place { root, rank }: Place, steps: &mut Vec<Step>) {
    let own = chunking.block(rank);
    let others = || chunking.world_size.peers(rank).filter(|&peer| peer != root);
    for index in 0..chunking.of_longest_block() {
        if rank == root {
            put_each(chunking, rank, index, steps);
        } else {
            steps.extend(chunking.take(root, own, index));
        }
        steps.extend(others().filter_map(|peer| chunking.put(peer, own, index)));
        if rank != root {
            take_each(chunking, rank, index, steps);
        }
    }
}

/// Everyone sends each block to the rank that it is for. Every chunk leaves before the one with its
/// index arrives, so that equal blocks can stay in the same memory.
pub(crate) fn all_to_all(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let peers = || chunking.world_size.peers(rank);
    let outgoing = |peer| chunking.block_between(rank, peer);
    let incoming = |peer| chunking.block_between(peer, rank);
    let longest = chunking.longest(peers().map(outgoing).chain(peers().map(incoming)));
    for index in 0..longest.unwrap_or_default() {
        steps.extend(peers().filter_map(|peer| chunking.put(peer, outgoing(peer), index)));
        let last_first = peers().rev();
        steps.extend(last_first.flat_map(|peer| chunking.take(peer, incoming(peer), index)));
    }
}

/// Two shots: everyone sends each shard to its owner, which folds it and sends it to everyone. Each
/// chunk goes both ways before the next, so that what is sent on was just folded and lies in a cache.
pub(crate) fn all_reduce_two_shot(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    for index in 0..chunking.of_longest_block() {
        reduce_scatter_chunk(chunking, rank, index, steps);
        all_gather_chunk(chunking, rank, index, steps);
    }
}

pub(crate) fn reduce_scatter(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    for index in 0..chunking.of_longest_block() {
        reduce_scatter_chunk(chunking, rank, index, steps);
    }
}

fn reduce_scatter_chunk(chunking: &Chunking, rank: Rank, index: usize, steps: &mut Vec<Step>) {
    put_each(chunking, rank, index, steps);
    if let Some(own) = chunking.chunk_of_block(rank, index) {
        fold(chunking.world_size, rank, own, steps);
    }
}

pub(crate) fn all_gather(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    for index in 0..chunking.of_longest_block() {
        all_gather_chunk(chunking, rank, index, steps);
    }
}

fn all_gather_chunk(chunking: &Chunking, rank: Rank, index: usize, steps: &mut Vec<Step>) {
    let (own, peers) = (chunking.block(rank), chunking.world_size.peers(rank));
    steps.extend(peers.filter_map(|peer| chunking.put(peer, own, index)));
    take_each(chunking, rank, index, steps);
}

pub(crate) fn gather(chunking: &Chunking, Place { root, rank }: Place, steps: &mut Vec<Step>) {
    if rank != root {
        return pairs::send(chunking, root, chunking.block(rank), steps);
    }
    let peers = || chunking.world_size.peers(root);
    for index in 0..chunking.of_longest_block() {
        steps.extend(peers().flat_map(|peer| chunking.take(peer, chunking.block(peer), index)));
    }
}

pub(crate) fn scatter(chunking: &Chunking, Place { root, rank }: Place, steps: &mut Vec<Step>) {
    if rank != root {
        return pairs::receive_all(chunking, root, chunking.block(rank), steps);
    }
    for index in 0..chunking.of_longest_block() {
        put_each(chunking, root, index, steps);
    }
}

/// Sends a chunk of every other rank's block to that rank.
fn put_each(chunking: &Chunking, rank: Rank, index: usize, steps: &mut Vec<Step>) {
    let peers = chunking.world_size.peers(rank);
    steps.extend(peers.filter_map(|peer| chunking.put(peer, chunking.block(peer), index)));
}

/// Takes a chunk of every other rank's block. Nearest sender first: the one behind this rank puts to it first.
fn take_each(chunking: &Chunking, rank: Rank, index: usize, steps: &mut Vec<Step>) {
    let peers = chunking.world_size.peers(rank).rev();
    steps.extend(peers.flat_map(|peer| chunking.take(peer, chunking.block(peer), index)));
}

/// Waits for one frame of every peer, and folds them with this rank's own data in rank order.
fn fold(world: WorldSize, rank: Rank, target: ElemRange, steps: &mut Vec<Step>) {
    let sources = world.ranks().map(|operand| chunking::source(rank, operand));
    let peers = world.peers(rank).rev();
    chunking::fold(peers, target, sources.collect(), Stage::Final, steps);
}
