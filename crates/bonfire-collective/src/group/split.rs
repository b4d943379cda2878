//! Forming smaller groups out of a group.

mod attempt;

use std::panic::Location;

use bonfire_plan::Rank;
use ring::digest::{Context, SHA256};

use super::ProcessGroup;
use super::roster::Roster;
use crate::options::GroupOptions;
use crate::rendezvous::ConnectError;
use crate::transport::topology::Topology;

use crate::rendezvous::group_error::Result;
use attempt::Attempt;

struct Wish {
    call: String,
    color: Option<u32>,
    key: i64,
    options: GroupOptions,
    is_detached: bool,
    call_site: &'static Location<'static>,
}

impl ProcessGroup {
    /// Forms groups of the ranks that give the same color.
    ///
    /// Every rank of this group must call it, as an operation in its order. The ranks of a color are
    /// numbered from 0 in the order of their keys, and in the order of their ranks here where keys
    /// are equal. A rank without a color gets no group, but takes part.
    ///
    /// The new group has links and a sequence of operations of its own: it may be used at the same time as
    /// this one, from another thread, may be split again, and outlives it.
    ///
    /// It shares this one's fate: the first failure in either, or in another group that was made from them, is the
    /// failure of all, on all their ranks. Whoever is to blame is named by the rank in the group that
    /// returns the error, or where it has no such rank by
    /// [`FailedElsewhere`](crate::CollectiveError::FailedElsewhere). A group that is split from a
    /// [`detached`](Self::detached) handle lives by itself.
    ///
    /// ```
    /// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
    /// use bonfire::collective::{GroupOptions, ProcessGroup, ReduceOp, WorldSize};
    ///
    /// let groups = ProcessGroup::local(WorldSize::new(4)?, GroupOptions::default())?;
    /// std::thread::scope(|scope| {
    ///     for world in groups {
    ///         scope.spawn(move || {
    ///             // Ranks 0 and 2 are one group, ranks 1 and 3 the other.
    ///             let color = world.rank().get() % 2;
    ///             let half = world.split(Some(color), 0).unwrap().expect("every rank has a color");
    ///             assert_eq!(half.world_size().get(), 2);
    ///
    ///             let mut sum = [world.rank().get()];
    ///             half.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    ///             assert_eq!(sum, [if color == 0 { 0 + 2 } else { 1 + 3 }]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What ends this group, as in any operation; or [`Connect`](crate::CollectiveError::Connect) on all ranks of a
    /// color if they cannot connect, and then this group continues.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        self.split_with(color, key, self.roster().options.clone())
    }

    /// [`split`](Self::split) with other options than this group's; they must be the same on all ranks of a color.
    #[track_caller]
    pub fn split_with(
        &self,
        color: Option<u32>,
        key: i64,
        options: GroupOptions,
    ) -> Result<Option<Self>> {
        self.split_as(Wish {
            call: self.call("split".to_owned()),
            color,
            key,
            options,
            is_detached: self.is_detached,
            call_site: Location::caller(),
        })
    }

    /// The same membership, but the groups that this handle's splits make do not share this group's fate: if one
    /// of them is aborted this group goes on, and the other way round. The death of a process still ends all
    /// groups that it is in. All ranks must split such a handle, or none.
    ///
    /// ```
    /// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
    /// use bonfire::collective::{GroupOptions, ProcessGroup, WorldSize};
    ///
    /// # let one = WorldSize::new(1)?;
    /// # let group = ProcessGroup::local(one, GroupOptions::default())?.remove(0);
    /// let trial = group.detached().split(Some(0), 0)?.expect("every rank has a color");
    /// trial.abort("it was only tried");
    /// group.barrier()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { is_detached: true, ..self.clone() }
    }

    /// A group of these ranks in this order; `None` on the ranks that are not among them.
    ///
    /// Every rank of this group must call it, with the same list.
    ///
    /// # Errors
    /// As [`split`](Self::split); and if the list names a rank twice, or one that does not exist,
    /// or is not the same on all ranks. This group continues.
    #[track_caller]
    pub fn subgroup(&self, ranks: &[Rank]) -> Result<Option<Self>> {
        let world_size = self.world_size();
        let mut named = vec![false; world_size.len()];
        for &rank in ranks {
            if !world_size.contains(rank) {
                return Err(ConnectError::NoSuchRank { rank, world_size }.into());
            }
            if std::mem::replace(&mut named[rank.index()], true) {
                return Err(ConnectError::NamedTwice { rank }.into());
            }
        }
        let place = ranks.iter().position(|rank| *rank == self.rank());
        self.split_as(Wish {
            call: self.call(format!("subgroup of {} ranks, {}", ranks.len(), fingerprint(ranks))),
            color: place.map(|_| 0),
            key: place.map_or(0, |place| place as i64),
            options: self.roster().options.clone(),
            is_detached: self.is_detached,
            call_site: Location::caller(),
        })
    }

    /// The group of the ranks that are on this rank's host, in the order of their ranks.
    #[track_caller]
    pub fn split_by_host(&self) -> Result<Self> {
        let host = self.topology().host_of(self.rank());
        let group = self.split(Some(host), 0)?;
        Ok(group.expect("every rank is on a host"))
    }

    /// The group of the lowest ranks of all hosts; `None` on the other ranks.
    #[track_caller]
    pub fn split_leaders(&self) -> Result<Option<Self>> {
        let host = self.topology().host_of(self.rank());
        let leads = self.topology().leader_of(host) == self.rank();
        self.split(leads.then_some(0), 0)
    }

    /// Which host each rank of this group is on.
    pub fn topology(&self) -> &Topology {
        &self.roster().topology
    }

    /// The rank in the first group of the job of each rank of this one.
    pub fn members(&self) -> &[Rank] {
        self.roster().members()
    }

    /// The rank in the first group of the job of `rank` of this one.
    ///
    /// # Panics
    /// When this group has no such rank.
    pub fn world_rank(&self, rank: Rank) -> Rank {
        self.roster().world_rank(rank)
    }

    /// The number of this group in its job: the same on all its ranks, 0 for the first group.
    pub fn number(&self) -> u32 {
        self.roster().number
    }

    pub(super) fn roster(&self) -> &Roster {
        &self.core.roster
    }

    fn call(&self, call: String) -> String {
        if self.is_detached { format!("detached {call}") } else { call }
    }

    fn split_as(&self, wish: Wish) -> Result<Option<Self>> {
        let options = wish.options.clone();
        let parts = self.in_turn(|core| Attempt { core, wish }.run())?;
        match parts {
            Some(parts) => Ok(Some(Self::new(parts, options)?)),
            None => Ok(None),
        }
    }
}

/// The same text on every rank for the same list.
fn fingerprint(ranks: &[Rank]) -> String {
    let mut hash = Context::new(&SHA256);
    for rank in ranks {
        hash.update(&rank.get().to_le_bytes());
    }
    let digest = hash.finish();
    digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
