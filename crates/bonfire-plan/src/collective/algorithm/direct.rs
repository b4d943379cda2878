//! Direct plans: every rank reaches every other in one hop.
//!
//! Every fold runs over ranks 0 to n - 1 in that order, in one step, with one rounding: the canonical order. The bits
//! of an element depend on nothing but the ranks' values, whatever the buffer it lies in and however it is chunked.
//!
//! No deadlock, even with one slot: order all work by chunk index. A put waits only for a release
//! of an earlier index, a wait only for a put of its own index.

use super::shared::chunking::{Chunking, receive};
use super::shared::tree::Place;
use crate::{ElemRange, Rank, Source, Stage, Step, WorldSize};

/// One shot: everyone sends everything to everyone, and everyone folds everything.
pub(crate) fn all_reduce(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    for chunk in chunking.of_buffer() {
        steps.extend(world.peers(rank).map(|peer| Step::Put {
            peer,
            source: chunk,
        }));
        fold(world, rank, chunk, steps);
    }
}

/// Everyone sends everything to the root, which folds it.
pub(crate) fn reduce(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Place { root, rank } = place;
    for chunk in chunking.of_buffer() {
        if rank == root {
            fold(chunking.world_size, rank, chunk, steps);
        } else {
            steps.push(Step::Put {
                peer: root,
                source: chunk,
            });
        }
    }
}

/// The root sends every shard to its owner, who passes it on to everyone else. Each chunk is passed
/// on as soon as it is there.
pub(crate) fn broadcast(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Place { root, rank } = place;
    let world = chunking.world_size;
    let mut shards: Vec<_> = world
        .peers(rank)
        .chain([rank])
        .map(|owner| (owner, chunking.of_block(owner)))
        .collect();
    for _ in 0..chunking.of_longest_block() {
        let round: Vec<_> = shards
            .iter_mut()
            .filter_map(|(owner, shard)| Some((*owner, shard.next()?)))
            .collect();
        let own = round.iter().find(|&&(owner, _)| owner == rank);
        if rank == root {
            let others = round.iter().filter(|&&(owner, _)| owner != root);
            steps.extend(others.map(|&(peer, source)| Step::Put { peer, source }));
        } else if let Some(&(_, target)) = own {
            steps.extend(receive(root, target));
        }
        if let Some(&(_, source)) = own {
            let others = world.peers(rank).filter(|&peer| peer != root);
            steps.extend(others.map(|peer| Step::Put { peer, source }));
        }
        if rank != root {
            let others = round.iter().filter(|&&(owner, _)| owner != rank);
            // Nearest sender first, as in an all-gather.
            steps.extend(
                others
                    .rev()
                    .flat_map(|&(owner, target)| receive(owner, target)),
            );
        }
    }
}

/// Everyone sends each block to the rank that it is for. Every chunk leaves before the one with its
/// index arrives, so that equal blocks can stay in the same memory.
pub(crate) fn all_to_all(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let mut outgoing: Vec<_> = world
        .peers(rank)
        .map(|peer| (peer, chunking.of(chunking.block_between(rank, peer))))
        .collect();
    let mut incoming: Vec<_> = world
        .peers(rank)
        .rev()
        .map(|peer| (peer, chunking.of(chunking.block_between(peer, rank))))
        .collect();
    let lengths = outgoing
        .iter()
        .chain(&incoming)
        .map(|(_, chunks)| chunks.len());
    for _ in 0..lengths.max().unwrap_or_default() {
        for (peer, block) in &mut outgoing {
            let peer = *peer;
            steps.extend(block.next().map(|source| Step::Put { peer, source }));
        }
        for (peer, block) in &mut incoming {
            if let Some(target) = block.next() {
                steps.extend(receive(*peer, target));
            }
        }
    }
}

/// Two shots: everyone sends each shard to its owner, which folds it and sends it to everyone. Each
/// chunk goes both ways before the next, so that what is sent on was just folded and lies in a cache.
pub(crate) fn all_reduce_two_shot(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    for index in 0..chunking.of_longest_block() {
        let chunk_of = |owner| chunking.chunk_of_block(owner, index);
        for peer in world.peers(rank) {
            steps.extend(chunk_of(peer).map(|source| Step::Put { peer, source }));
        }
        if let Some(own) = chunk_of(rank) {
            fold(world, rank, own, steps);
            steps.extend(
                world
                    .peers(rank)
                    .map(|peer| Step::Put { peer, source: own }),
            );
        }
        // Nearest sender first, as in an all-gather.
        for peer in world.peers(rank).rev() {
            steps.extend(
                chunk_of(peer)
                    .into_iter()
                    .flat_map(|target| receive(peer, target)),
            );
        }
    }
}

/// Everyone sends each shard to its owner, which folds it.
pub(crate) fn reduce_scatter(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let mut own = chunking.of_block(rank);
    let mut outgoing: Vec<_> = world
        .peers(rank)
        .map(|peer| (peer, chunking.of_block(peer)))
        .collect();
    for _ in 0..chunking.of_longest_block() {
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
pub(crate) fn all_gather(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let world = chunking.world_size;
    let mut own = chunking.of_block(rank);
    // Nearest sender first: the one behind this rank puts to it first.
    let mut incoming: Vec<_> = world
        .peers(rank)
        .rev()
        .map(|peer| (peer, chunking.of_block(peer)))
        .collect();
    for _ in 0..chunking.of_longest_block() {
        if let Some(source) = own.next() {
            steps.extend(world.peers(rank).map(|peer| Step::Put { peer, source }));
        }
        for (peer, shard) in &mut incoming {
            let peer = *peer;
            if let Some(target) = shard.next() {
                steps.extend(receive(peer, target));
            }
        }
    }
}

/// Every owner sends its block to the root.
pub(crate) fn gather(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Place { root, rank } = place;
    if rank != root {
        let put = |source| Step::Put { peer: root, source };
        steps.extend(chunking.of_block(rank).map(put));
        return;
    }
    let mut incoming: Vec<_> = chunking
        .world_size
        .peers(root)
        .map(|peer| (peer, chunking.of_block(peer)))
        .collect();
    for _ in 0..chunking.of_longest_block() {
        for (peer, block) in &mut incoming {
            if let Some(target) = block.next() {
                steps.extend(receive(*peer, target));
            }
        }
    }
}

/// The root sends every block to its owner.
pub(crate) fn scatter(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Place { root, rank } = place;
    if rank != root {
        let blocks = chunking.of_block(rank);
        steps.extend(blocks.flat_map(|target| receive(root, target)));
        return;
    }
    let mut outgoing: Vec<_> = chunking
        .world_size
        .peers(root)
        .map(|peer| (peer, chunking.of_block(peer)))
        .collect();
    for _ in 0..chunking.of_longest_block() {
        for (peer, block) in &mut outgoing {
            let peer = *peer;
            steps.extend(block.next().map(|source| Step::Put { peer, source }));
        }
    }
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
