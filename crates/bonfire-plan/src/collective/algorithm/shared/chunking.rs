//! A shape with its blocks worked out: what the builders of all algorithms cut frames from.

use std::num::NonZeroUsize;

use crate::collective::Blocks;
use crate::types::chunk;
use crate::{ElemRange, Rank, ScheduleShape, Step, WorldSize, chunks};

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

    pub(crate) fn of_buffer(&self) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
        self.of(self.buffer)
    }

    pub(crate) fn of_block(
        &self,
        rank: Rank,
    ) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
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

    pub(crate) fn of(
        &self,
        range: ElemRange,
    ) -> impl ExactSizeIterator<Item = ElemRange> + Clone + use<> {
        chunks(range, self.chunk_elems_max)
    }

    /// The number of chunks of the block that has most.
    pub(crate) fn of_longest_block(&self) -> usize {
        let lengths = self
            .world_size
            .ranks()
            .map(|rank| self.of_block(rank).len());
        lengths.max().expect("a world has ranks")
    }
}

/// Waits for the next frame from `peer`, writes it to `target`, and frees its slot.
pub(crate) fn receive(peer: Rank, target: ElemRange) -> [Step; 3] {
    [
        Step::Wait { peer },
        Step::Copy { peer, target },
        Step::Release { peer },
    ]
}
