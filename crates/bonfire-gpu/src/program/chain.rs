//! The chain: an all-reduce from neighbour to neighbour in the order of the ranks.
//!
//! Pieces of the buffer travel up from rank 0 to the last: each rank adds its own values to what its
//! neighbour below holds. The last has the result, which travels down again: each rank copies what its
//! neighbour above holds. So every element is folded over ranks 0 to n - 1, as the direct algorithm folds
//! it, where a ring starts each shard at another rank. A rank reads only the memory of its two neighbours
//! and writes only its own, and the first and the last need not reach each other fast. Each link carries the
//! buffer once in either direction.
//!
//! The way down is the pipelined broadcast of Watts and van de Geijn, "A pipelined broadcast for
//! multidimensional meshes" (1995), on a line; the way up is its mirror image, as Open MPI has it under the
//! name `pipeline`. Both run at the same time.
//!
//! No deadlock: give every step a time, 2p + r to rank r's fold of piece p and 2p + 2n - 1 - r to its copy. A
//! step needs only steps of earlier times, and every rank takes its own in the order of time.

use std::num::NonZeroUsize;

use bonfire_plan::{ElemRange, Rank, Stage, Step, WorldSize, chunks};

/// Pieces shorter than this cost more to announce than to move: half a MiB of f32.
const PIECE_ELEMS_MIN: usize = 128 << 10;

/// The more pieces, the sooner the last rank has something to do; the fewer, the fewer launches.
const PIECES_MAX: usize = 64;

/// The longest piece of so many elements.
pub(crate) fn piece_elems(count: usize) -> NonZeroUsize {
    let elems = count.div_ceil(PIECES_MAX).max(PIECE_ELEMS_MIN);
    NonZeroUsize::new(elems).unwrap_or(NonZeroUsize::MIN)
}

/// What `rank` does with the elements 0 to `count` in place: frames are empty, and every fold and copy is a
/// [`Step::ReduceDirect`]. Ends with `barrier`, the rank's steps of one, because a neighbour may still be
/// reading when a rank has done its own part.
///
/// The rank that keeps the others waiting is the one that has told least. So all ranks tell equally much, and
/// each tells the next one, round the ring, that it is there before it waits for anything.
pub(crate) fn steps(world: WorldSize, rank: Rank, count: usize, barrier: Vec<Step>) -> Vec<Step> {
    assert!(world.contains(rank), "rank {rank} of {world}");
    let pieces: Vec<ElemRange> = chunks(ElemRange::up_to(count), piece_elems(count))
        .filter(|piece| !piece.is_empty())
        .collect();
    let link = Link { world, me: rank };
    // So many pieces have passed on their way up before the first one comes down.
    let lag = world.len() - 1 - rank.index();
    let mut steps = link.hello();
    for (number, &piece) in pieces.iter().enumerate() {
        link.up(piece, &mut steps);
        if let Some(down) = number.checked_sub(lag) {
            link.down(pieces[down], &mut steps);
        }
    }
    for &piece in &pieces[pieces.len().saturating_sub(lag)..] {
        link.down(piece, &mut steps);
    }
    steps.extend(barrier);
    steps
}

/// A rank's place in the chain.
#[derive(Clone, Copy)]
struct Link {
    world: WorldSize,
    me: Rank,
}

impl Link {
    fn is_first(self) -> bool {
        self.me.get() == 0
    }

    fn is_last(self) -> bool {
        self.me.get() + 1 == self.world.get()
    }

    fn hello(self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.world.len() > 1 {
            let (next, prev) = (self.world.next(self.me), self.world.prev(self.me));
            steps.push(put(next));
            steps.extend([Step::Wait { peer: prev }, Step::Release { peer: prev }]);
        }
        steps
    }

    /// Adds the own values to the sum of the ranks below.
    fn up(self, range: ElemRange, steps: &mut Vec<Step>) {
        let below = (!self.is_first()).then(|| self.world.prev(self.me));
        if let Some(below) = below {
            self.hear(below, steps);
        }
        // The first has nothing to add, unless it is alone: then its values are the result.
        if below.is_some() || self.is_last() {
            steps.push(Step::ReduceDirect {
                range,
                sources: below.into_iter().chain([self.me]).collect(),
                targets: Box::new([self.me]),
                stage: match self.is_last() {
                    true => Stage::Final,
                    false => Stage::Partial,
                },
            });
        }
        if !self.is_last() {
            self.tell(self.world.next(self.me), steps);
        }
    }

    /// Takes the result from the rank above.
    fn down(self, range: ElemRange, steps: &mut Vec<Step>) {
        if !self.is_last() {
            let above = self.world.next(self.me);
            self.hear(above, steps);
            steps.push(Step::ReduceDirect {
                range,
                sources: Box::new([above]),
                targets: Box::new([self.me]),
                stage: Stage::Partial,
            });
        }
        if !self.is_first() {
            self.tell(self.world.prev(self.me), steps);
        }
    }

    fn tell(self, peer: Rank, steps: &mut Vec<Step>) {
        for _ in 0..self.messages(self.me) {
            steps.push(put(peer));
        }
    }

    fn hear(self, peer: Rank, steps: &mut Vec<Step>) {
        for _ in 0..self.messages(peer) {
            steps.extend([Step::Wait { peer }, Step::Release { peer }]);
        }
    }

    /// How often a rank says that a piece is there. Between others it tells both of them, so at an end it
    /// tells its only neighbour twice.
    fn messages(self, rank: Rank) -> usize {
        let is_end = rank.get() == 0 || rank.get() + 1 == self.world.get();
        if is_end && self.world.len() > 2 { 2 } else { 1 }
    }
}

fn put(peer: Rank) -> Step {
    let source = ElemRange::up_to(0);
    Step::Put { peer, source }
}

#[cfg(test)]
mod tests;
