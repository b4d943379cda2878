//! Ranks as threads of this process: for tests, notebooks and small machines.

use std::io;
use std::thread;

use bonfire_collective::{GroupOptions, ProcessGroup, Rank, WorldSize};
use bonfire_train::{DeviceKind, LocalRank, Occupancy, World};

use crate::error::{BoxError, Error, Result};
use crate::rank::{self, Fault, RankFailure};

/// The stack of a rank, that of a main thread on Linux: a model that fits there fits here.
const STACK_BYTES: usize = 8 << 20;

/// The options of ranks as threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpawnOptions {
    /// The number of ranks to run.
    pub world_size: WorldSize,
    /// The kind of device on which they compute.
    pub device: DeviceKind,
    /// Options of the group, such as timeouts.
    pub group: GroupOptions,
}

impl SpawnOptions {
    /// Runs `world_size` ranks on the best available device.
    pub fn new(world_size: WorldSize) -> Self {
        Self { world_size, device: DeviceKind::Auto, group: GroupOptions::default() }
    }

    /// Sets the [`device`](Self::device) of all ranks.
    #[must_use]
    pub fn with_device(mut self, device: DeviceKind) -> Self {
        self.device = device;
        self
    }

    /// Sets the options of the [`group`](Self::group).
    #[must_use]
    pub fn with_group(mut self, group: GroupOptions) -> Self {
        self.group = group;
        self
    }
}

/// Runs `n` ranks as threads of this process and returns their results in rank order.
///
/// ```
/// let sums = bonfire::spawn(3, |world| {
///     let mut data = [world.rank().get() as f32];
///     world.group().all_reduce(&mut data, bonfire::collective::ReduceOp::Sum)?;
///     Ok::<_, bonfire::Error>(data[0])
/// })?;
/// assert_eq!(sums, [3.0, 3.0, 3.0]);
/// # Ok::<_, bonfire::Error>(())
/// ```
///
/// # Errors
/// If a rank returns an error or panics, all operations of the others fail, and the error returned is that of the rank
/// that failed first, with its number.
pub fn spawn<T, E>(n: u32, f: impl Fn(World) -> Result<T, E> + Sync) -> Result<Vec<T>>
where
    T: Send,
    E: Into<BoxError>,
{
    spawn_with(&SpawnOptions::new(WorldSize::new(n)?), f)
}

/// Runs ranks as [`spawn`] does, with these options.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with<T, E>(
    options: &SpawnOptions,
    f: impl Fn(World) -> Result<T, E> + Sync,
) -> Result<Vec<T>>
where
    T: Send,
    E: Into<BoxError>,
{
    let groups = ProcessGroup::local(options.world_size, options.group.clone())?;
    let run = |group: ProcessGroup| {
        let local = LocalRank {
            local_rank: group.rank().get(),
            local_world_size: options.world_size.get(),
        };
        rank::run(group, local, options.device, Occupancy::Exclusive, &f)
    };
    let ends = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(groups.len());
        for group in groups {
            let rank = group.rank();
            let builder =
                thread::Builder::new().name(format!("rank-{rank}")).stack_size(STACK_BYTES);
            // On an error the groups not yet handed out are dropped, which ends the ranks that wait for them.
            threads.push((rank, builder.spawn_scoped(scope, move || run(group))?));
        }
        let join = |(rank, thread): (Rank, thread::ScopedJoinHandle<'_, _>)| {
            let end = thread.join();
            (rank, end.expect("a rank's panic is caught on its own thread"))
        };
        io::Result::Ok(threads.into_iter().map(join).collect::<Vec<_>>())
    })?;
    verdict(ends)
}

/// All results, or the error of the rank that failed by itself.
fn verdict<T>(ends: Vec<(Rank, Result<T, RankFailure>)>) -> Result<Vec<T>> {
    let mut values = Vec::with_capacity(ends.len());
    let mut failures = Vec::new();
    for (rank, end) in ends {
        match end {
            Ok(value) => values.push(value),
            Err(failure) => failures.push((rank, failure)),
        }
    }
    failures.sort_by_key(|(rank, failure)| (failure.fault == Fault::Peer, *rank));
    match failures.into_iter().next() {
        None => Ok(values),
        // A panic names its rank already.
        Some((_, RankFailure { error, .. })) if matches!(error, Error::Panicked { .. }) => {
            Err(error)
        }
        Some((rank, RankFailure { error, .. })) => Err(Error::Rank { rank, source: error.into() }),
    }
}

#[cfg(test)]
mod tests;
