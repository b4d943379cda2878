//! Which rank does which part of a training: a grid with an axis for each way of dividing it.
//!
//! A [`MeshShape`] is what a user asks for, `pp=2,dp=4,tp=2`; over a world it becomes a [`Grid`], which says where
//! each rank is. Axes are in the order of [`Axis::ALL`], the last one fastest: ranks that follow one another, which
//! mostly share a host, are neighbours in tensor parallelism, which sends the most. This is the order of Megatron-LM
//! and torchtitan.

mod shape;

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

pub use shape::{MeshError, MeshShape};

use crate::types::named_codes;
use crate::{Placement, Rank, ShardGroup, WorldSize};

named_codes! {
    /// A way of dividing a training among ranks.
    pub enum Axis as "axis" {
        /// Pipeline parallelism: ranks have different layers.
        Pp = 1, "pp";
        /// Data parallelism: ranks have different batches, and each has a copy of what the other has.
        DpReplicate = 2, "dp_replicate";
        /// Data parallelism: ranks have different batches, and a placement may shard what they have among them.
        DpShard = 3, "dp_shard";
        /// Context parallelism: ranks have different parts of the same sequences.
        Cp = 4, "cp";
        /// Tensor parallelism: ranks have different parts of the same layers.
        Tp = 5, "tp";
    }
}

impl Axis {
    /// How many axes a mesh has.
    pub const COUNT: usize = Self::ALL.len();

    /// The axes whose ranks have different batches and the same parameters: those that follow one another.
    pub const DATA: Range<usize> = Self::DpReplicate.index()..Self::DpShard.index() + 1;

    /// The axes whose ranks have the same parameters, and different batches or parts of their sequences.
    pub const REPLICAS: Range<usize> = Self::DATA.start..Self::Cp.index() + 1;

    /// The place in lists with one entry per axis.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Where a rank is on each axis, in the order of [`Axis::ALL`].
pub type Coordinates = [u32; Axis::COUNT];

/// A world of ranks laid out over the axes.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_plan::*; } pub mod world { pub use bonfire_plan::*; } }
/// use bonfire::collective::{Rank, WorldSize};
/// use bonfire::world::{Axis, Grid, MeshShape};
///
/// let shape: MeshShape = "pp=2,dp=2,tp=2".parse()?;
/// let grid = shape.over(WorldSize::new(8)?)?;
/// assert_eq!(grid.coordinates(Rank::new(5)), [1, 0, 0, 0, 1]);
/// // Who works on the same layers as rank 5, with the same batch.
/// assert_eq!(grid.along(Rank::new(5), Axis::Tp), [Rank::new(4), Rank::new(5)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    sizes: [u32; Axis::COUNT],
}

impl Grid {
    /// The number of ranks on an axis; 1 if nothing is divided that way.
    pub fn size(&self, axis: Axis) -> u32 {
        self.sizes[axis.index()]
    }

    /// The number of ranks in the mesh.
    pub fn world_size(&self) -> WorldSize {
        WorldSize::new(self.sizes.iter().product()).expect("no axis is empty")
    }

    /// Where a rank is.
    ///
    /// # Panics
    /// If the world has no such rank.
    pub fn coordinates(&self, rank: Rank) -> Coordinates {
        let ranks = self.world_size();
        assert!(ranks.contains(rank), "rank {rank} of a mesh of {ranks}");
        let mut left = rank.get();
        let mut found = [0; Axis::COUNT];
        for (place, size) in found.iter_mut().zip(self.sizes).rev() {
            *place = left % size;
            left /= size;
        }
        found
    }

    /// Who is there.
    ///
    /// # Panics
    /// If the mesh ends before.
    pub fn rank(&self, coordinates: Coordinates) -> Rank {
        let steps = coordinates.into_iter().zip(self.sizes);
        Rank::new(steps.fold(0, |rank, (place, size)| {
            assert!(place < size, "place {place} on an axis of {size}");
            rank * size + place
        }))
    }

    /// The ranks that are where a rank is on all other axes, in their order.
    pub fn along(&self, rank: Rank, axis: Axis) -> Vec<Rank> {
        self.among(rank, axis.index()..axis.index() + 1)
    }

    /// The ranks that have other batches than a rank and the same parameters, and the rank itself, in their order.
    pub fn data(&self, rank: Rank) -> Vec<Rank> {
        self.among(rank, Axis::DATA)
    }

    /// The ranks that a rank averages gradients with: those that have the same parameters, in their order.
    pub fn replicas(&self, rank: Rank) -> Vec<Rank> {
        self.among(rank, Axis::REPLICAS)
    }

    /// A placement for [`replicas`](Self::replicas), whose shards are distributed on `dp_shard` and
    /// `cp` and copied on `dp_replicate`, unless it says itself among whom.
    pub fn placement(&self, placement: Placement) -> Placement {
        let shares = NonZeroU32::new(self.size(Axis::DpShard) * self.size(Axis::Cp));
        match (placement.among, shares) {
            (ShardGroup::All, Some(ranks)) if self.size(Axis::DpReplicate) > 1 => {
                placement.among(ShardGroup::Ranks(ranks))
            }
            _ => placement,
        }
    }

    /// The ranks that differ from one on some axes only, in their order.
    fn among(&self, rank: Rank, axes: Range<usize>) -> Vec<Rank> {
        let fixed = |rank| {
            let mut place = self.coordinates(rank);
            place[axes.clone()].fill(0);
            place
        };
        let (own, all) = (fixed(rank), self.world_size().ranks());
        all.filter(|&other| fixed(other) == own).collect()
    }
}

impl fmt::Display for Grid {
    /// Such as `pp=2,dp_shard=2,tp=2`: without axes of size 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MeshShape::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests;
