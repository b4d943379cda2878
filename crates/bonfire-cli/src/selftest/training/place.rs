//! Ranks as threads, on the devices of this machine in turn.

use std::panic;
use std::thread;
use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, WorldSize};
use bonfire_train::{DeviceKind, Occupancy, Placement, World};

use crate::TrialError;

/// What ranks train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of their devices, which they share in turn.
    pub kind: DeviceKind,
    /// How long they wait for each other.
    pub timeout: Duration,
}

impl Place {
    /// A rank of a group that is formed already, the `local_rank`-th of so many on this host.
    ///
    /// # Errors
    /// Those of [`World::with_occupancy`].
    pub fn world(
        &self,
        group: ProcessGroup,
        (local_rank, local_world_size): (u32, u32),
    ) -> Result<World, TrialError> {
        let placement = Placement {
            local_rank,
            local_world_size,
        };
        let devices = (self.kind, Occupancy::Oversubscribed);
        Ok(World::with_occupancy(group, placement, devices)?)
    }

    /// How their groups are formed.
    pub fn group_options(&self) -> GroupOptions {
        GroupOptions {
            timeout: self.timeout,
            ..GroupOptions::default()
        }
    }
}

/// Runs `body` on so many ranks, each a thread; the results in rank order.
///
/// # Errors
/// The first rank's that failed.
pub fn on_threads<R: Send>(
    place: &Place,
    ranks: WorldSize,
    body: impl Fn(&World) -> Result<R, TrialError> + Sync,
) -> Result<Vec<R>, TrialError> {
    let groups = ProcessGroup::local(ranks, place.group_options())?;
    let body = &body;
    let run = |group: ProcessGroup| {
        let here = (group.rank().get(), ranks.get());
        body(&place.world(group, here)?)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| scope.spawn(move || run(group)))
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended
            .into_iter()
            .map(|end| end.unwrap_or_else(|cause| panic::resume_unwind(cause)))
            .collect()
    })
}
