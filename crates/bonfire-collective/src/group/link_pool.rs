//! Where the threads of one process find the links that the lowest of them made for all.
//!
//! Nobody waits here: the ranks agree through their old group that the links are there before they take them.

use std::collections::HashMap;
use std::sync::Arc;

use bonfire_plan::{Rank, WorldSize};

use super::shared_values::SharedValues;
use crate::health::domain::Domain;
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use crate::rendezvous::ConnectError;
use crate::transport::{Links, Sharing, local_links};
use bonfire_connect::platform::sync::Mutex;

/// What one rank of a group of threads takes.
#[derive(Debug)]
pub(super) struct LinkSet {
    pub(super) links: Links,
    pub(super) sharing: Sharing,
    pub(super) poison: Arc<Poison>,
    /// For a group that shares no other's fate.
    pub(super) domain: Arc<Domain>,
}

/// The links that no rank has taken yet, by the number of the group.
#[derive(Debug, Default)]
pub(crate) struct LinkPool {
    groups: Mutex<HashMap<u32, GroupLinks>>,
    shared_values: SharedValues,
}

#[derive(Debug)]
struct GroupLinks {
    sets: Vec<Option<LinkSet>>,
    poison: Arc<Poison>,
}

impl LinkPool {
    /// Makes the links of all ranks of a new group and keeps them until they are taken.
    pub(super) fn add(
        &self,
        group: u32,
        world_size: WorldSize,
        chunk_bytes: usize,
    ) -> Result<(), ConnectError> {
        let poison = Arc::new(Poison::new(world_size));
        let domain = Arc::default();
        let sets = local_links(world_size, chunk_bytes)?
            .into_iter()
            .zip(Sharing::of_threads(world_size)?)
            .map(|(links, sharing)| {
                Some(LinkSet {
                    links,
                    sharing,
                    poison: Arc::clone(&poison),
                    domain: Arc::clone(&domain),
                })
            })
            .collect();
        let earlier = self.groups.lock().insert(group, GroupLinks { sets, poison });
        assert!(earlier.is_none(), "group {group} has links already");
        Ok(())
    }

    /// The links of `rank`, which it takes once; `None` if the group was abandoned.
    pub(super) fn take(&self, group: u32, rank: Rank) -> Option<LinkSet> {
        let mut groups = self.groups.lock();
        let links = groups.get_mut(&group)?;
        let set = links.sets[rank.index()].take();
        if links.sets.iter().all(Option::is_none) {
            groups.remove(&group);
        }
        set
    }

    /// Fails the group for those that have taken their links, and drops the others.
    pub(super) fn abandon(&self, group: u32, failure: Failure) {
        if let Some(links) = self.groups.lock().remove(&group) {
            links.poison.set(failure);
        }
    }

    pub(super) fn shared_values(&self) -> &SharedValues {
        &self.shared_values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> WorldSize {
        WorldSize::new(2).unwrap()
    }

    #[test]
    fn every_rank_takes_its_seat_once_and_nothing_stays() {
        let pool = LinkPool::default();
        pool.add(7, two(), 64).unwrap();
        assert!(pool.take(6, Rank::new(0)).is_none());
        assert!(pool.take(7, Rank::new(1)).is_some());
        assert!(pool.take(7, Rank::new(1)).is_none());
        assert!(pool.take(7, Rank::new(0)).is_some());
        assert!(pool.groups.lock().is_empty());
    }

    #[test]
    fn an_abandoned_group_fails_those_who_sit_already() {
        let pool = LinkPool::default();
        pool.add(7, two(), 64).unwrap();
        let set = pool.take(7, Rank::new(0)).unwrap();
        let failure = Failure::Peer { rank: Rank::new(1), cause: "it gave up".to_owned() };
        pool.abandon(7, failure.clone());
        assert_eq!(set.poison.failure(), Some(failure));
        assert!(pool.take(7, Rank::new(1)).is_none());
    }
}
