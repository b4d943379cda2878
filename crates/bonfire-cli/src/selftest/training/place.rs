//! Ranks as threads, on the devices of this machine in turn.

use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, WorldSize};
use bonfire_train::{DeviceKind, LocalRank, Occupancy, World};

use crate::bench::as_threads;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: DeviceKind,
    pub(super) timeout: Duration,
}

impl Place {
    pub(super) fn world(&self, group: ProcessGroup, local: LocalRank) -> anyhow::Result<World> {
        let occupancy = Occupancy::Oversubscribed;
        Ok(World::with_occupancy(group, local, self.kind, occupancy)?)
    }

    pub(super) fn group_options(&self) -> GroupOptions {
        GroupOptions::default().with_timeout(self.timeout)
    }
}

/// Runs `body` on that many ranks, each a thread; the results in rank order.
pub(super) fn on_threads<R: Send>(
    place: &Place,
    ranks: WorldSize,
    body: impl Fn(&World) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let groups = ProcessGroup::local(ranks, place.group_options())?;
    as_threads(groups, |group| {
        let local = LocalRank { local_rank: group.rank().get(), local_world_size: ranks.get() };
        body(&place.world(group, local)?)
    })
}
