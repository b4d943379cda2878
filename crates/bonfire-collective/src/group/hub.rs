//! Where the threads of one process find the links that the lowest of them made for all.
//!
//! Nobody waits here: the ranks agree through their old group that the links are there before they
//! take them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use bonfire_plan::{Rank, WorldSize};

use super::commons::Commons;
use crate::health::domain::Domain;
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use crate::meet::rendezvous::ConnectError;
use crate::transport::{Links, Sharing, local_links};
use bonfire_connect::platform::sync::{Mutex, MutexGuard};

/// What one rank of a group of threads takes.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) links: Links,
    pub(super) sharing: Sharing,
    pub(super) poison: Arc<Poison>,
    /// For a group that shares no other's fate.
    pub(super) domain: Arc<Domain>,
}

/// The seats that nobody has taken yet, by the number of the group.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    tables: Mutex<HashMap<u32, Table>>,
    commons: Commons,
}

#[derive(Debug)]
struct Table {
    seats: Vec<Option<Seat>>,
    poison: Arc<Poison>,
}

impl Hub {
    /// Makes the links of all ranks of a new group and keeps them until they are taken.
    pub(super) fn lay(
        &self,
        group: u32,
        world_size: WorldSize,
        chunk_bytes: usize,
    ) -> Result<(), ConnectError> {
        let poison = Arc::new(Poison::new(world_size));
        let domain = Arc::default();
        let seats = local_links(world_size, chunk_bytes)?
            .into_iter()
            .zip(Sharing::of_threads(world_size)?)
            .map(|(links, sharing)| {
                Some(Seat {
                    links,
                    sharing,
                    poison: Arc::clone(&poison),
                    domain: Arc::clone(&domain),
                })
            })
            .collect();
        let earlier = self.tables().insert(group, Table { seats, poison });
        assert!(earlier.is_none(), "group {group} has been laid before");
        Ok(())
    }

    /// The seat of `rank`, which it takes once; `None` if the group was abandoned.
    pub(super) fn take(&self, group: u32, rank: Rank) -> Option<Seat> {
        let mut tables = self.tables();
        let table = tables.get_mut(&group)?;
        let seat = table.seats[rank.index()].take();
        if table.seats.iter().all(Option::is_none) {
            tables.remove(&group);
        }
        seat
    }

    /// Fails the group for those who have taken their seats, and gives up the others.
    pub(super) fn abandon(&self, group: u32, failure: Failure) {
        if let Some(table) = self.tables().remove(&group) {
            table.poison.set(failure);
        }
    }

    pub(super) fn commons(&self) -> &Commons {
        &self.commons
    }

    fn tables(&self) -> MutexGuard<'_, HashMap<u32, Table>> {
        // Each call leaves the tables complete, so a panic elsewhere does not spoil them.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
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
        let hub = Hub::default();
        hub.lay(7, two(), 64).unwrap();
        assert!(hub.take(6, Rank::new(0)).is_none());
        assert!(hub.take(7, Rank::new(1)).is_some());
        assert!(hub.take(7, Rank::new(1)).is_none());
        assert!(hub.take(7, Rank::new(0)).is_some());
        assert!(hub.tables().is_empty());
    }

    #[test]
    fn an_abandoned_group_fails_those_who_sit_already() {
        let hub = Hub::default();
        hub.lay(7, two(), 64).unwrap();
        let seat = hub.take(7, Rank::new(0)).unwrap();
        let failure = Failure::Peer {
            rank: Rank::new(1),
            cause: "it gave up".to_owned(),
        };
        hub.abandon(7, failure.clone());
        assert_eq!(seat.poison.failure(), Some(failure));
        assert!(hub.take(7, Rank::new(1)).is_none());
    }
}
