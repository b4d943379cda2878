//! A shape with its blocks worked out: what the builders of all algorithms cut frames from, and make steps of.

use std::num::NonZeroUsize;

use crate::collective::Blocks;
use crate::types::chunk;
use crate::{ElemRange, Rank, ScheduleShape, Source, Stage, Step, WorldSize, chunks};

pub(crate) struct Chunking {
    pub(crate) world_size: WorldSize,
    /// All elements, where there are no pairs.
    pub(crate) buffer: ElemRange,
    chunk_elems_max: NonZeroUsize,
    blocks: Blocks,
}

impl Chunking {
    pub(crate) fn new(shape: &ScheduleShape) -> Self {
        Self {
            world_size: shape.world_size,
            buffer: ElemRange::up_to(shape.count),
            chunk_elems_max: shape.chunk_elems_max,
            blocks: Blocks::new(shape),
        }
    }

    pub(crate) fn of(
        &self,
        range: ElemRange,
    ) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
        chunks(range, self.chunk_elems_max)
    }

    pub(crate) fn of_buffer(&self) -> impl Iterator<Item = ElemRange> + use<> {
        self.of(self.buffer)
    }

    pub(crate) fn of_block(&self, rank: Rank) -> impl Iterator<Item = ElemRange> + use<> {
        self.of(self.block(rank))
    }

    pub(crate) fn block(&self, rank: Rank) -> ElemRange {
        self.blocks.of(rank)
    }

    /// One chunk of `rank`'s block, if the block has that many.
    pub(crate) fn chunk_of_block(&self, rank: Rank, index: usize) -> Option<ElemRange> {
        chunk(self.block(rank), self.chunk_elems_max, index)
    }

    pub(crate) fn block_between(&self, source: Rank, target: Rank) -> ElemRange {
        self.blocks.between(source, target)
    }

    pub(crate) fn of_longest_block(&self) -> usize {
        let blocks = self.world_size.ranks().map(|rank| self.block(rank));
        self.longest(blocks).expect("a world has ranks")
    }

    /// The number of chunks of the range that has most.
    pub(crate) fn longest(&self, ranges: impl Iterator<Item = ElemRange>) -> Option<usize> {
        ranges.map(|range| self.of(range).len()).max()
    }

    /// Sends one chunk of `range` to `peer`, if the range has that many.
    pub(crate) fn put(&self, peer: Rank, range: ElemRange, index: usize) -> Option<Step> {
        let chunk = chunk(range, self.chunk_elems_max, index);
        chunk.map(|source| Step::Put { peer, source })
    }

    /// Takes one chunk of `range` from `peer`, if the range has that many.
    pub(crate) fn take(
        &self,
        peer: Rank,
        range: ElemRange,
        index: usize,
    ) -> impl Iterator<Item = Step> + use<> {
        let chunk = chunk(range, self.chunk_elems_max, index).into_iter();
        chunk.flat_map(move |target| receive(peer, target))
    }
}

/// Waits for the next frame from `peer`, writes it to `target`, and frees its slot.
pub(crate) fn receive(peer: Rank, target: ElemRange) -> [Step; 3] {
    [Step::Wait { peer }, Step::Copy { peer, target }, Step::Release { peer }]
}

/// Waits for the next frame from each of `peers`, folds `sources`, and frees the slots.
pub(crate) fn fold(
    peers: impl Iterator<Item = Rank> + Clone,
    target: ElemRange,
    sources: Box<[Source]>,
    stage: Stage,
    steps: &mut Vec<Step>,
) {
    steps.extend(peers.clone().map(|peer| Step::Wait { peer }));
    steps.push(Step::Reduce { target, sources, stage });
    steps.extend(peers.map(|peer| Step::Release { peer }));
}

/// Where `rank` finds what `operand` contributes to a fold.
pub(crate) fn source(rank: Rank, operand: Rank) -> Source {
    if operand == rank { Source::Own } else { Source::Inbox(operand) }
}

/// Completes a fold of nothing but a rank's own data.
pub(crate) fn finish_alone(target: ElemRange) -> Step {
    Step::Reduce { target, sources: Box::new([Source::Own]), stage: Stage::Final }
}
