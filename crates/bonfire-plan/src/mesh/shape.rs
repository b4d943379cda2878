//! What a user asks for.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Axis, Grid};
use crate::WorldSize;

/// How many ranks there are on each axis, before it is known how many there are.
///
/// Reads text such as `pp=2,dp=4,tp=2`, in any order. `dp` is short for `dp_shard`. An axis that is not named has
/// one rank, and the text may be empty. One axis may have the size -1: it gets the ranks that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MeshShape {
    /// `None` is an inferred size.
    sizes: [Option<NonZeroU32>; Axis::COUNT],
}

impl MeshShape {
    const ONE: Self = Self { sizes: [Some(NonZeroU32::MIN); Axis::COUNT] };

    /// The mesh of all ranks of a world.
    ///
    /// # Errors
    /// [`MeshError::DoesNotFit`] if the sizes do not multiply to the number of ranks.
    pub fn over(self, world_size: WorldSize) -> Result<Grid, MeshError> {
        let known = self.sizes.iter().flatten();
        let known = known.map(|size| u64::from(size.get()));
        let known = known.fold(1_u64, u64::saturating_mul);
        let ranks = u64::from(world_size.get());
        let left = self.sizes.contains(&None);
        if (left && ranks % known != 0) || (!left && ranks != known) {
            let shape = self;
            return Err(MeshError::DoesNotFit { shape, known, world_size });
        }
        let rest = u32::try_from(ranks / known).expect("no more than there are ranks");
        Ok(Grid { sizes: self.sizes.map(|size| size.map_or(rest, NonZeroU32::get)) })
    }
}

impl Default for MeshShape {
    /// All ranks have different batches: `dp_shard=-1`.
    fn default() -> Self {
        let mut shape = Self::ONE;
        shape.sizes[Axis::DpShard.index()] = None;
        shape
    }
}

impl From<Grid> for MeshShape {
    fn from(grid: Grid) -> Self {
        Self { sizes: grid.sizes.map(NonZeroU32::new) }
    }
}

impl TryFrom<String> for MeshShape {
    type Error = MeshError;

    fn try_from(text: String) -> Result<Self, MeshError> {
        text.parse()
    }
}

impl From<MeshShape> for String {
    fn from(shape: MeshShape) -> Self {
        shape.to_string()
    }
}

impl TryFrom<&str> for MeshShape {
    type Error = MeshError;

    fn try_from(text: &str) -> Result<Self, MeshError> {
        text.parse()
    }
}

impl FromStr for MeshShape {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let mut shape = Self::ONE;
        let mut named = [false; Axis::COUNT];
        let parts = text.split(',').map(str::trim);
        for part in parts.filter(|part| !part.is_empty()) {
            let unreadable = || MeshError::Unreadable { part: part.to_owned() };
            let (name, size) = part.split_once('=').ok_or_else(unreadable)?;
            let axis = match name.trim() {
                "dp" => Axis::DpShard,
                name => name.parse().map_err(|_| unreadable())?,
            };
            if std::mem::replace(&mut named[axis.index()], true) {
                return Err(MeshError::NamedTwice { axis });
            }
            let size = match size.trim() {
                "-1" => None,
                size => Some(size.parse().map_err(|_| unreadable())?),
            };
            shape.sizes[axis.index()] = size;
        }
        let axes = Axis::ALL.iter().copied();
        let mut inferred = axes.filter(|axis| shape.sizes[axis.index()].is_none());
        match (inferred.next(), inferred.next()) {
            (Some(axis), Some(again)) => Err(MeshError::InferredTwice { axis, again }),
            _ => Ok(shape),
        }
    }
}

impl fmt::Display for MeshShape {
    /// Such as `pp=2,dp_shard=-1,tp=2`: without axes of size 1, but never empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = Axis::ALL.iter().zip(self.sizes);
        let parts = axes.filter_map(|(axis, size)| match size {
            Some(NonZeroU32::MIN) => None,
            Some(size) => Some(format!("{axis}={size}")),
            None => Some(format!("{axis}=-1")),
        });
        match &parts.collect::<Vec<String>>()[..] {
            [] => f.write_str("dp_shard=1"),
            parts => f.write_str(&parts.join(",")),
        }
    }
}

/// A mesh that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A part of the text is not an axis with a size.
    #[error(
        "`{part}` is not an axis of a mesh: write name=ranks, such as dp=4, with one of the names pp, dp (the same as \
         dp_shard), dp_replicate, dp_shard, cp and tp; ranks are 1 or more, or -1 for those that are left"
    )]
    Unreadable {
        /// The text between two commas, without spaces around it.
        part: String,
    },
    /// Two sizes for one axis.
    #[error("the mesh names the axis {axis} twice; give it one size (dp is the same as dp_shard)")]
    NamedTwice {
        /// The axis of both sizes; `dp` counts as `dp_shard`.
        axis: Axis,
    },
    /// Two axes whose size would have to be inferred.
    #[error("both {axis} and {again} have the size -1; give one of them a number of ranks")]
    InferredTwice {
        /// The first of them, in the order of [`Axis::ALL`].
        axis: Axis,
        /// The second of them, in the same order.
        again: Axis,
    },
    /// The sizes do not multiply to the number of ranks.
    #[error(
        "the mesh {shape} needs {}{known} ranks, and there are {world_size}; {}",
        multiple(shape),
        change(shape, *known, *world_size)
    )]
    DoesNotFit {
        /// The sizes that were asked for, with -1 for an inferred one.
        shape: MeshShape,
        /// The product of the sizes that are given.
        known: u64,
        /// The number of ranks that the mesh has to have.
        world_size: WorldSize,
    },
}

fn multiple(shape: &MeshShape) -> &'static str {
    if shape.sizes.contains(&None) { "a multiple of " } else { "" }
}

fn change(shape: &MeshShape, known: u64, world_size: WorldSize) -> String {
    let ranks = u64::from(world_size.get());
    let given = shape.sizes[Axis::DpShard.index()].map_or(1, NonZeroU32::get);
    let others = known / u64::from(given);
    let dp = ranks / others;
    if dp > 0 && ranks.is_multiple_of(others) {
        format!("start {known} ranks, or give dp={dp} (dp=-1 finds it)")
    } else {
        format!("start {known} ranks or a multiple of {others} with dp=-1, or make an axis smaller")
    }
}
