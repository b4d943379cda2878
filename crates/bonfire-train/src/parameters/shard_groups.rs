//! The groups of a placement.

use bonfire_collective::ProcessGroup;
use bonfire_plan::{Placement, ShardGroup};

use crate::TrainError;

#[derive(Clone, Debug)]
pub(crate) struct ShardGroups {
    /// The ranks that have the shards of one copy of the state.
    shards: ProcessGroup,
    /// Those that have the same shard as this one; `None` if there is one copy.
    copies: Option<ProcessGroup>,
    /// True if this rank's copy is that of rank 0.
    is_first: bool,
}

impl ShardGroups {
    /// The groups of a placement. Every rank calls it.
    #[track_caller]
    pub(crate) fn new(placement: Placement, all: &ProcessGroup) -> Result<Self, TrainError> {
        let one_copy = Self { shards: all.clone(), copies: None, is_first: true };
        let copy_of: Vec<u32> = match placement.among {
            ShardGroup::Host => all.topology().hosts().to_vec(),
            ShardGroup::Ranks(ranks) => {
                (0..all.world_size().get()).map(|rank| rank / ranks).collect()
            }
            ShardGroup::All => return Ok(one_copy),
        };
        let ranks_of = |copy| copy_of.iter().filter(|other| **other == copy).count();
        let sizes: Vec<usize> = copy_of.iter().map(|copy| ranks_of(*copy)).collect();
        if sizes.iter().any(|size| *size != sizes[0]) {
            let reason =
                format!("its groups have different numbers of ranks: {sizes:?} in rank order");
            return Err(TrainError::unsupported(placement, reason));
        }
        if !placement.is_sharded() || sizes[0] == copy_of.len() {
            return Ok(one_copy);
        }
        let own = copy_of[all.rank().index()];
        let part = |color| -> Result<ProcessGroup, TrainError> {
            let part = all.split(Some(color), 0)?.expect("every rank has a color");
            Ok(part.with_timeout(all.timeout()))
        };
        let shards = part(own)?;
        Ok(Self { copies: Some(part(shards.rank().get())?), shards, is_first: own == copy_of[0] })
    }

    pub(crate) fn shards(&self) -> &ProcessGroup {
        &self.shards
    }

    /// The shards' group, or `all` if it has the same ranks, whose timeout may have changed.
    pub(crate) fn among<'a>(&'a self, all: &'a ProcessGroup) -> &'a ProcessGroup {
        self.copies.as_ref().map_or(all, |_| &self.shards)
    }

    /// The ranks that have the same shard as this one, if there are any.
    pub(crate) fn copies(&self) -> Option<&ProcessGroup> {
        self.copies.as_ref()
    }

    /// Returns true if this rank's copy is that of rank 0.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }
}
