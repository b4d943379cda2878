//! Recursive halving and doubling on a hypercube: the bytes of a ring in a logarithmic number of rounds.
//!
//! After Rabenseifner, "Optimization of collective reduction operations" (2004), and Thakur, Rabenseifner and Gropp,
//! "Optimization of collective communication operations in MPICH" (2005). In each round of halving a rank and its
//! partner, at half of the distance of the round before, split the range that both still fold: each sends the half
//! that it gives up. Doubling is the same backwards.
//!
//! The corners of the hypercube are as many ranks as the largest power of two. Each of the other
//! ranks, the *spare* ones, is the odd one of a pair at the beginning of the world: its even
//! neighbour folds its data in first, and hands it its result last.
//!
//! No deadlock, even with one slot: order all work by (round, chunk). In a round a rank has one
//! partner, to whom it puts each chunk before it waits for the one with the same index.

use super::shared::chunking::{Chunking, finish_alone, fold};
use super::shared::pairs::{self, Meeting};
use crate::{ElemRange, Rank, Source, Stage, Step, WorldSize, shard_range};

/// Every element is folded at one corner; all corners get all of them.
pub(crate) fn all_reduce(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let cube = Cube::new(chunking.world_size);
    let segments = Segments::Equal(chunking.buffer);
    match cube.seat(rank) {
        Seat::Spare { host } => {
            pairs::send(chunking, host, chunking.buffer, steps);
            pairs::receive_all(chunking, host, chunking.buffer, steps);
        }
        Seat::Corner { corner, spare } => {
            fold_in(chunking, spare, steps);
            cube.halve(chunking, segments, corner, steps);
            cube.double(chunking, segments, corner, steps);
            if let Some(spare) = spare {
                pairs::send(chunking, spare, chunking.buffer, steps);
            }
        }
    }
}

/// A corner folds its own block, and that of the rank it stands in for.
pub(crate) fn reduce_scatter(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let cube = Cube::new(chunking.world_size);
    match cube.seat(rank) {
        Seat::Spare { host } => {
            pairs::send(chunking, host, chunking.buffer, steps);
            pairs::receive_all(chunking, host, chunking.block(rank), steps);
        }
        Seat::Corner { corner, spare } => {
            fold_in(chunking, spare, steps);
            cube.halve(chunking, Segments::Blocks, corner, steps);
            if let Some(spare) = spare {
                pairs::send(chunking, spare, chunking.block(spare), steps);
            }
        }
    }
}

/// A corner brings its own block, and that of the rank it stands in for.
pub(crate) fn all_gather(chunking: &Chunking, rank: Rank, steps: &mut Vec<Step>) {
    let cube = Cube::new(chunking.world_size);
    match cube.seat(rank) {
        Seat::Spare { host } => {
            pairs::send(chunking, host, chunking.block(rank), steps);
            for range in all_but_block(chunking, rank) {
                pairs::receive_all(chunking, host, range, steps);
            }
        }
        Seat::Corner { corner, spare } => {
            if let Some(spare) = spare {
                pairs::receive_all(chunking, spare, chunking.block(spare), steps);
            }
            cube.double(chunking, Segments::Blocks, corner, steps);
            if let Some(spare) = spare {
                for range in all_but_block(chunking, spare) {
                    pairs::send(chunking, spare, range, steps);
                }
            }
        }
    }
}

/// Folds the data of the rank that this corner stands in for onto its own.
fn fold_in(chunking: &Chunking, spare: Option<Rank>, steps: &mut Vec<Step>) {
    let Some(peer) = spare else { return };
    for target in chunking.of_buffer() {
        let sources = Box::new([Source::Own, Source::Inbox(peer)]);
        fold([peer].into_iter(), target, sources, Stage::Partial, steps);
    }
}

/// What lies before and behind the block of a rank, where there is something.
fn all_but_block(chunking: &Chunking, rank: Rank) -> impl Iterator<Item = ElemRange> {
    let block = chunking.block(rank);
    let before = ElemRange::new(chunking.buffer.start(), block.start());
    let behind = ElemRange::new(block.end(), chunking.buffer.end());
    let parts = [before, behind].into_iter();
    parts.filter(|range| !range.is_empty())
}

/// What a corner is responsible for at the end of halving and at the beginning of doubling.
#[derive(Clone, Copy)]
enum Segments {
    /// One of equal parts of the whole range.
    Equal(ElemRange),
    /// Its block, and that of the rank it stands in for, which is the next.
    Blocks,
}

enum Seat {
    Corner {
        corner: u32,
        spare: Option<Rank>,
    },
    Spare {
        /// The rank that stands in for it.
        host: Rank,
    },
}

#[derive(Clone, Copy)]
struct Cube {
    corners: WorldSize,
    /// The ranks that are not corners; each has a corner before it.
    spares: u32,
}

impl Cube {
    fn new(world: WorldSize) -> Self {
        let corners = WorldSize::new(1 << world.get().ilog2()).expect("a power of two");
        let spares = world.get() - corners.get();
        Self { corners, spares }
    }

    fn seat(self, rank: Rank) -> Seat {
        let number = rank.get();
        let (corner, spare) = if number >= 2 * self.spares {
            (number - self.spares, None)
        } else if number.is_multiple_of(2) {
            (number / 2, Some(Rank::new(number + 1)))
        } else {
            let host = Rank::new(number - 1);
            return Seat::Spare { host };
        };
        Seat::Corner { corner, spare }
    }

    fn rank(self, corner: u32) -> Rank {
        Rank::new(corner + corner.min(self.spares))
    }

    /// What `count` corners from `first` on are responsible for.
    fn segment(self, chunking: &Chunking, segments: Segments, first: u32, count: u32) -> ElemRange {
        let begin = |corner| match segments {
            _ if corner == self.corners.get() => chunking.buffer.end(),
            Segments::Equal(range) => {
                range.start() + shard_range(range.len(), self.corners, Rank::new(corner)).start()
            }
            Segments::Blocks => chunking.block(self.rank(corner)).start(),
        };
        ElemRange::new(begin(first), begin(first + count))
    }

    /// Folds, until this corner has what it is responsible for.
    fn halve(self, chunking: &Chunking, segments: Segments, corner: u32, steps: &mut Vec<Step>) {
        let mut distance = self.corners.get() / 2;
        if distance == 0 {
            steps.extend(chunking.of_buffer().map(finish_alone));
        }
        while distance > 0 {
            let partner = corner ^ distance;
            let peer = self.rank(partner);
            // The corners that agree with this one, or with its partner, in all bits so far.
            let among =
                |corner: u32| self.segment(chunking, segments, corner & !(distance - 1), distance);
            let meeting = Meeting::with(peer, among(partner), among(corner));
            let stage = if distance == 1 { Stage::Final } else { Stage::Partial };
            pairs::exchange_with(chunking, meeting, steps, |target| Step::Reduce {
                target,
                sources: Box::new([Source::Own, Source::Inbox(peer)]),
                stage,
            });
            distance /= 2;
        }
    }

    fn double(self, chunking: &Chunking, segments: Segments, corner: u32, steps: &mut Vec<Step>) {
        let mut distance = 1;
        while distance < self.corners.get() {
            let partner = corner ^ distance;
            let held =
                |corner: u32| self.segment(chunking, segments, corner & !(distance - 1), distance);
            let meeting = Meeting::with(self.rank(partner), held(corner), held(partner));
            pairs::exchange(chunking, meeting, steps);
            distance *= 2;
        }
    }
}
