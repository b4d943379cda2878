//! The places of parameters in a bucket.
//!
//! Where parameters are cut into rows, a bucket is as many equal blocks as there are ranks, each with the rows of
//! one rank of all parameters: so a block is a rank's part of the mean, and its contribution when parameters are
//! gathered. The blocks of ranks with fewer rows are padded at the end.
//!
//! If one rank has all of each parameter, the bucket is sent to it, and comes from it.

use std::ops::Range;

use bonfire_plan::buckets::{Assignment, Extent};
use bonfire_plan::{DType, Division};

use crate::parameters::shards::Shards;

#[derive(Debug)]
pub(crate) struct BucketLayout {
    pub(crate) dtype: DType,
    pub(crate) division: Division,
    pub(crate) slots: Vec<Slot>,
    pub(crate) elems: usize,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) parameter: usize,
    pub(crate) pieces: Vec<Piece>,
    /// The index of this rank's piece, if any.
    own: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Piece {
    /// The elements in the bucket.
    pub(crate) place: Range<usize>,
    /// The elements in the parameter.
    pub(crate) elems: Range<usize>,
}

/// Slots in the memory of a device begin at multiples of this.
const ALIGN_BYTES: usize = 16;

impl BucketLayout {
    /// The layout in the memory of a device, where complete parameters begin at addresses that suit vectors.
    pub(crate) fn on_device(assignment: &Assignment, shards: &Shards, extents: &[Extent]) -> Self {
        match assignment.division {
            Division::Whole => Self::aligned(assignment, extents),
            Division::Rows | Division::Owned(_) => Self::new(assignment, shards),
        }
    }

    pub(crate) fn aligned(assignment: &Assignment, extents: &[Extent]) -> Self {
        let align = ALIGN_BYTES / assignment.dtype.size_bytes();
        let mut end = 0_usize;
        let slots = assignment.parameters.iter().map(|&parameter| {
            let Extent { dtype, elems } = extents[parameter];
            assert_eq!(dtype, assignment.dtype);
            let start = end.next_multiple_of(align);
            end = start + elems;
            let pieces = vec![Piece { place: start..end, elems: 0..elems }];
            Slot { parameter, pieces, own: Some(0) }
        });
        let slots = slots.collect();
        Self { dtype: assignment.dtype, division: Division::Whole, slots, elems: end }
    }

    pub(crate) fn new(assignment: &Assignment, shards: &Shards) -> Self {
        let parameters = &assignment.parameters;
        let pieces: Vec<_> = parameters.iter().map(|&p| shards.pieces(p)).collect();
        let (block_elems, blocks) = shards.layout().blocks(parameters);
        let mut ends: Vec<usize> = (0..blocks).map(|block| block * block_elems).collect();
        let slots = parameters.iter().zip(&pieces).map(|(&parameter, pieces)| {
            let pieces = pieces.iter().zip(&mut ends).map(|(elems, end)| {
                let place = *end..*end + elems.len();
                *end = place.end;
                let elems = elems.clone();
                Piece { place, elems }
            });
            Slot { parameter, pieces: pieces.collect(), own: shards.own_piece(parameter) }
        });
        Self {
            dtype: assignment.dtype,
            division: assignment.division,
            slots: slots.collect(),
            elems: blocks * block_elems,
        }
    }

    /// The pieces of all parameters, each with its slot.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, &Piece)> {
        let slots = self.slots.iter().enumerate();
        slots.flat_map(|(slot, Slot { pieces, .. })| pieces.iter().map(move |piece| (slot, piece)))
    }

    /// The elements of this rank's piece of a parameter.
    pub(crate) fn own_place(&self, slot: usize) -> Range<usize> {
        let Slot { pieces, own, .. } = &self.slots[slot];
        own.map_or(0..0, |own| pieces[own].place.clone())
    }

    pub(crate) fn own_place_in_block(&self, slot: usize) -> Range<usize> {
        let (place, block) = (self.own_place(slot), self.block());
        place.start - block.start..place.end - block.start
    }

    pub(crate) fn block(&self) -> Range<usize> {
        let Some((pieces, own)) =
            self.slots.first().and_then(|slot| Some((slot.pieces.len(), slot.own?)))
        else {
            return 0..0;
        };
        let elems = self.elems / pieces;
        own * elems..(own + 1) * elems
    }
}
