//! Why a group could not be formed.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use std::io;
use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::RegionError;

use super::Reach;
use crate::CollectiveError;
use crate::health::reports::list;
use crate::options::OptionError;
use crate::options::settings::SettingError;
use crate::options::transport_kind::TransportKind;
use bonfire_connect::secure::token::TokenError;
use bonfire_connect::store::StoreError;

/// A group could not be formed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Environment(#[from] SettingError),
    /// TLS hides what is sent from listeners, but without a token nobody at the other end is known.
    #[error(
        "TLS needs a job token, without which it encrypts for anyone who connects: export one BONFIRE_JOB_TOKEN, \
         `openssl rand -hex 32`, to all ranks"
    )]
    NoToken,
    /// torchrun's store, through which the ranks find each other, does not answer as it should.
    #[error("torchrun's store at {address} is of no use; is torchrun still there?")]
    Torchrun { address: String, source: io::Error },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(
        "{} of {world_size} ranks did not come within {} s: rank {}; did they start, and do they \
         have the same MASTER_ADDR and MASTER_PORT?",
        .missing.len(), .waited.as_secs_f32(), list(.missing)
    )]
    Missing { missing: Vec<Rank>, world_size: WorldSize, waited: Duration },
    #[error("there is another rank {rank}: is RANK set right, or does another job use this store?")]
    RankTaken { rank: Rank },
    /// The rank is left over from an earlier attempt of the job.
    #[error(
        "this is rank {rank} of attempt {restart_count}, but the job is at attempt {current}: all \
         ranks were started anew, and this one must end"
    )]
    StaleAttempt { rank: Rank, restart_count: u32, current: i64 },
    #[error(
        "rank {mine} has {what} {my_value}, but rank {theirs} has {their_value}: start the same \
         program with the same settings as every rank"
    )]
    Disagree { mine: Rank, what: &'static str, my_value: String, theirs: Rank, their_value: String },
    #[error(
        "rank {mine} runs {my_program}, but rank {theirs} runs {their_program}: start copies of one build \
         everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    Builds { mine: Rank, my_program: String, theirs: Rank, their_program: String },
    #[error("the {transport} transport cannot connect ranks {mine} and {theirs}: {reason}")]
    Transport { transport: TransportKind, mine: Rank, theirs: Rank, reason: &'static str },
    #[error("rank {mine} cannot reach rank {theirs} at {address}: {reason}")]
    Unreachable { mine: Rank, theirs: Rank, address: String, reason: String },
    /// The group failed before this rank had joined it: a rank was lost, or gave up.
    #[error("the group failed while its ranks were connecting: {0}")]
    GroupFailed(Box<CollectiveError>),
    #[error("{0}")]
    HostsApart(Box<Reach>),
    #[error("rank {rank} published an address that this version does not understand: {reason}")]
    Address { rank: Rank, reason: String },
    /// A rank could not do its part when a group was split. The group that was split continues.
    #[error("rank {rank} could not do its part of the split: {reason}")]
    PeerUnable {
        /// The rank, in the group that was to be.
        rank: Rank,
        reason: String,
    },
    /// The group that was being split failed before its parts were connected.
    #[error("the group failed while it was being split: {cause}")]
    ParentFailed { cause: String },
    #[error("there is no rank {rank} in a group of {world_size}")]
    NoSuchRank { rank: Rank, world_size: WorldSize },
    #[error("rank {rank} is named twice; a group has each rank once")]
    NamedTwice { rank: Rank },
    #[error(
        "a group of {world_size} ranks takes {needed} open files and more in each process, and this one \
         can open {left}: raise `ulimit -n`, or the limit of the container"
    )]
    OpenFiles {
        world_size: WorldSize,
        /// What the connections to them take.
        needed: u64,
        /// What the limit of this process leaves.
        left: u64,
    },
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("cannot make a key for TLS")]
    Identity(#[source] io::Error),
    #[error("cannot start a communication thread")]
    Thread(#[source] io::Error),
    #[error("{call} failed while the ranks were connecting")]
    System { call: &'static str, source: io::Error },
}

pub(crate) type Result<T, E = ConnectError> = std::result::Result<T, E>;
