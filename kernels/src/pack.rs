//! Copy of many segments in one launch: tensors into a bucket, and back.
//!
//! A [`Segment`] says which elements of the source go where in the target. [`Tiles`] cuts the
//! segments into tiles of at most [`TILE_BYTES`], one for each cube, as a table that the kernel
//! reads. Packing and unpacking are the same kernel with sources and targets exchanged.
//!
//! Offsets count elements from the address that the kernel is given. On CUDA that is any address
//! below all segments, in 64 bits: tensors in allocations of their own are one source whose address
//! is the lowest of theirs. A tile whose two offsets are multiples of 16 bytes moves 16 bytes at
//! once, others go element by element; buckets should start each tensor at such a multiple.
//!
//! Bytes moved per element: twice its size, and 24 bytes of table per tile; memory is the bound.

use crate::element::Element;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(crate) mod kernel;
#[cfg(test)]
mod tests;

/// Bytes of the largest tile: long enough that a cube's start does not count, short enough that a
/// bucket of 25 MiB has some for every multiprocessor.
pub const TILE_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    pub source: u64,
    pub target: u64,
    pub elems: u64,
}

/// One variant of the kernel: all elements of a size are copied alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pack {
    pub element: Element,
}

/// Segments, cut for the cubes of one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiles {
    tiles: Vec<Segment>,
}

impl Tiles {
    #[must_use]
    pub fn new(element: Element, segments: &[Segment]) -> Self {
        let tile_elems = (TILE_BYTES / element.bytes()) as u64;
        let mut tiles = Vec::new();
        for segment in segments {
            let mut done = 0;
            while done < segment.elems {
                let elems = tile_elems.min(segment.elems - done);
                tiles.push(Segment {
                    source: segment.source + done,
                    target: segment.target + done,
                    elems,
                });
                done += elems;
            }
        }
        Self { tiles }
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.tiles.len()
    }

    /// The table that the kernel reads on CUDA: source, target and length of each tile.
    #[must_use]
    pub fn table(&self) -> Vec<u64> {
        self.numbers().collect()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let tiles = self.tiles.iter();
        tiles.flat_map(|tile| [tile.source, tile.target, tile.elems])
    }
}
