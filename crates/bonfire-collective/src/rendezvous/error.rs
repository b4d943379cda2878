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
    /// The store did not answer or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A variable that is read at set-up is wrong.
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
    /// No job token could be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Some ranks never joined the others.
    #[error(
        "{} of {world_size} ranks did not come within {} s: rank {}; did they start, and do they \
         have the same MASTER_ADDR and MASTER_PORT?",
        .missing.len(), .waited.as_secs_f32(), list(.missing)
    )]
    Missing {
        /// The ranks that are not there.
        missing: Vec<Rank>,
        world_size: WorldSize,
        waited: Duration,
    },
    /// Two processes claim one rank.
    #[error("there is another rank {rank}: is RANK set right, or does another job use this store?")]
    RankTaken { rank: Rank },
    /// The rank is left over from an earlier attempt of the job.
    #[error(
        "this is rank {rank} of attempt {restart_count}, but the job is at attempt {current}: all \
         ranks were started anew, and this one must end"
    )]
    StaleAttempt {
        rank: Rank,
        restart_count: u32,
        /// The attempt that the job is at.
        current: i64,
    },
    /// Ranks were started with different settings.
    #[error(
        "rank {mine} has {what} {my_value}, but rank {theirs} has {their_value}: start the same \
         program with the same settings as every rank"
    )]
    Disagree {
        mine: Rank,
        what: &'static str,
        my_value: String,
        theirs: Rank,
        their_value: String,
    },
    /// Ranks run different builds of the program, or different programs.
    #[error(
        "rank {mine} runs {my_program}, but rank {theirs} runs {their_program}: start copies of one build \
         everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    Builds {
        mine: Rank,
        /// The file of its program, and which build that is.
        my_program: String,
        theirs: Rank,
        /// The file of the other's program, and which build that is.
        their_program: String,
    },
    /// The transport that was asked for cannot connect a pair.
    #[error("the {transport} transport cannot connect ranks {mine} and {theirs}: {reason}")]
    Transport {
        transport: TransportKind,
        mine: Rank,
        theirs: Rank,
        reason: &'static str,
    },
    /// A peer cannot be reached.
    #[error("rank {mine} cannot reach rank {theirs} at {address}: {reason}")]
    Unreachable {
        mine: Rank,
        theirs: Rank,
        address: String,
        reason: String,
    },
    /// The group failed before this rank had joined it: a rank was lost, or gave up.
    #[error("the group failed while its ranks were connecting: {0}")]
    GroupFailed(Box<CollectiveError>),
    /// Hosts of the job cannot reach each other.
    #[error("{0}")]
    HostsApart(Box<Reach>),
    /// A peer published something that is not an address.
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
    /// A list of ranks names one that does not exist.
    #[error("there is no rank {rank} in a group of {world_size}")]
    NoSuchRank { rank: Rank, world_size: WorldSize },
    /// A list of ranks names one twice.
    #[error("rank {rank} is named twice; a group has each rank once")]
    NamedTwice { rank: Rank },
    /// This process may open too few files.
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
    /// Shared memory cannot be made.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// No key could be made for TLS.
    #[error("cannot make a key for TLS")]
    Identity(#[source] io::Error),
    /// A thread cannot be started.
    #[error("cannot start a communication thread")]
    Thread(#[source] io::Error),
    /// A call on a socket failed.
    #[error("{call} failed while the ranks were connecting")]
    System {
        call: &'static str,
        source: io::Error,
    },
}
