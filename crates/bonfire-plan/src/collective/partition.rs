//! How the elements of a collective are divided into the blocks of its ranks.

use std::sync::Arc;

use crate::{Collective, ElemRange, PlanError, Rank, ScheduleShape, WorldSize, shard_range};

/// The length of each rank's block.
///
/// Only the gathering and scattering collectives and the all-to-all have blocks that a caller may
/// choose; everywhere else the division is the balanced one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Partition {
    /// Blocks differ by at most one element, see [`shard_range`]; in an all-to-all all n * n blocks are equal.
    #[default]
    Balanced,
    /// The elements of each rank's block, in rank order; their sum is the count.
    Ragged(Arc<[usize]>),
    /// The elements of the block from rank i to rank j at `i * n + j`; their sum is the count.
    Matrix(Arc<[usize]>),
}

impl Partition {
    /// Whether this partition divides `shape.count` elements for `shape.collective`.
    pub(crate) fn validate(&self, shape: &ScheduleShape) -> Result<(), PlanError> {
        let (collective, count) = (shape.collective, shape.count);
        let ranks = shape.world_size.len();
        let blocks = ranks * ranks;
        let (lengths, expected) = match (self, collective) {
            (Self::Balanced, Collective::AllToAll) if !count.is_multiple_of(blocks) => {
                return Err(PlanError::UnequalBlocks { count, blocks });
            }
            (Self::Balanced, _) => return Ok(()),
            (Self::Ragged(lengths), _) if takes_ragged(collective) => (lengths, ranks),
            (Self::Matrix(lengths), Collective::AllToAll) => (lengths, blocks),
            (Self::Ragged(_) | Self::Matrix(_), _) => {
                return Err(PlanError::UnsupportedPartition { collective });
            }
        };
        let given = lengths.len();
        if given != expected {
            return Err(PlanError::PartitionLength { given, expected });
        }
        let mut lengths = lengths.iter();
        let sum = lengths.try_fold(0_usize, |sum, &length| sum.checked_add(length));
        if sum != Some(count) {
            return Err(PlanError::PartitionSum { sum, count });
        }
        Ok(())
    }

    /// The same division, as [`Partition::Balanced`] if it is that; so that equal plans compare
    /// equal. Expects a valid partition.
    pub(crate) fn normalized(self, world_size: WorldSize) -> Self {
        let is_balanced = match &self {
            Self::Balanced => true,
            Self::Ragged(lengths) => {
                let count = lengths.iter().sum();
                let mut blocks = world_size.ranks().zip(lengths.iter());
                blocks.all(|(rank, &length)| shard_range(count, world_size, rank).len() == length)
            }
            Self::Matrix(lengths) => lengths.windows(2).all(|pair| pair[0] == pair[1]),
        };
        if is_balanced { Self::Balanced } else { self }
    }
}

/// Whether blocks of this collective are one per rank and may have any length.
const fn takes_ragged(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
    )
}

#[derive(Debug, Clone)]
pub(crate) enum Blocks {
    Balanced {
        count: usize,
        world_size: WorldSize,
    },
    Equal {
        len: usize,
        ranks: usize,
    },
    /// Where blocks begin, and the end of the last.
    Cut {
        starts: Box<[usize]>,
        ranks: usize,
    },
}

impl Blocks {
    pub(crate) fn new(shape: &ScheduleShape) -> Self {
        let (count, world_size) = (shape.count, shape.world_size);
        let ranks = world_size.len();
        match &shape.partition {
            Partition::Balanced if shape.collective == Collective::AllToAll => {
                Self::Equal { len: count / (ranks * ranks), ranks }
            }
            Partition::Balanced => Self::Balanced { count, world_size },
            Partition::Ragged(lengths) | Partition::Matrix(lengths) => {
                let ends = lengths.iter().scan(0, |end, &length| {
                    *end += length;
                    Some(*end)
                });
                let starts = std::iter::once(0).chain(ends).collect();
                Self::Cut { starts, ranks }
            }
        }
    }

    pub(crate) fn of(&self, rank: Rank) -> ElemRange {
        match self {
            Self::Balanced { count, world_size } => shard_range(*count, *world_size, rank),
            Self::Cut { starts, ranks } => {
                assert_eq!(starts.len(), ranks + 1, "there is one block per rank");
                ElemRange::new(starts[rank.index()], starts[rank.index() + 1])
            }
            Self::Equal { .. } => unreachable!("an all-to-all has a matrix of blocks"),
        }
    }

    pub(crate) fn between(&self, source: Rank, target: Rank) -> ElemRange {
        match self {
            Self::Equal { len, ranks } => {
                let start = (source.index() * ranks + target.index()) * len;
                ElemRange::new(start, start + len)
            }
            Self::Cut { starts, ranks } => {
                let (cuts, pairs) = (starts.len(), ranks * ranks);
                assert_eq!(cuts, pairs + 1, "there is one block per pair");
                let index = source.index() * ranks + target.index();
                ElemRange::new(starts[index], starts[index + 1])
            }
            Self::Balanced { .. } => unreachable!("only an all-to-all has a matrix of blocks"),
        }
    }
}
