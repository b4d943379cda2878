//! Why a group could not be rebuilt.

use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};

use crate::rendezvous::{ConnectError, list};
use crate::store::StoreError;

/// A group could not be rebuilt. The old group stays as it is: failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// Fewer ranks are left than the program can go on with. All of them return this.
    #[error(
        "only {} ranks are left (rank {} of the job), and {min_world} are needed: start the job anew \
         from its last checkpoint", .present.len(), list(.present)
    )]
    TooFew {
        /// Who is left, in the numbers of the job's first group.
        present: Vec<Rank>,
        /// How many are needed.
        min_world: WorldSize,
    },
    /// The others did not wait for this rank any longer.
    #[error(
        "the others have formed generation {generation} without rank {rank} of the job, which came too \
         late: raise RebuildOptions::join_timeout if it may need so long"
    )]
    LeftBehind {
        /// This rank, in the numbers of the job's first group.
        rank: Rank,
        /// The generation that the others are.
        generation: u32,
    },
    /// The place where the ranks meet is gone.
    #[error(
        "the store at which the ranks meet is gone: the host that served it, that of the launcher of \
         node 0, is probably lost; start the job anew from its last checkpoint"
    )]
    StoreGone(#[source] StoreError),
    /// There is no place where the ranks could meet again.
    #[error(
        "rank 0 served the store, and only until all ranks were connected, so they cannot meet again: \
         start the job with bonfire run, or as a program that launches itself"
    )]
    NoStore,
    /// Another thread of this rank is at it.
    #[error("another thread of this rank is rebuilding the group already: wait for its result")]
    Busy,
    /// This is not the group of the job.
    #[error("group {group} is a part of another one: rebuild the job's group, and split it anew")]
    Part {
        /// Its number.
        group: u32,
    },
    /// Ranks that are there cannot connect, or have different settings.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Round after round, a rank was lost on the way.
    #[error("the ranks did not get together within {} s and {rounds} rounds", .waited.as_secs())]
    GaveUp {
        /// How often it was tried.
        rounds: u32,
        /// How long.
        waited: Duration,
        /// Why the last round failed.
        source: Option<ConnectError>,
    },
}
