//! Why a group could not be formed.

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
    /// The store, through which ranks find each other, cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An option of [`GroupOptions`](crate::GroupOptions) is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// An environment variable that changes an option is wrong.
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
    Torchrun {
        /// The host and port from `MASTER_ADDR` and `MASTER_PORT`.
        address: String,
        /// The error of the last request or attempt to connect.
        source: io::Error,
    },
    /// The secret of the job has another form, or its file cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Some ranks did not arrive before the deadline of set-up.
    #[error(
        "{} of {world_size} ranks did not come within {} s: rank {}; did they start, and do they \
         have the same MASTER_ADDR and MASTER_PORT?",
        .missing.len(), .waited.as_secs_f32(), list(.missing)
    )]
    Missing {
        /// The ranks that this rank still waited for, ascending.
        missing: Vec<Rank>,
        /// The number of ranks that the group was to have.
        world_size: WorldSize,
        /// The time since set-up began on this rank.
        waited: Duration,
    },
    /// Two processes of the job claim the same rank.
    #[error("there is another rank {rank}: is RANK set right, or does another job use this store?")]
    RankTaken {
        /// The rank that is claimed twice: this process's, or 0.
        rank: Rank,
    },
    /// The rank is left over from an earlier attempt of the job.
    #[error(
        "this is rank {rank} of attempt {restart_count}, but the job is at attempt {current}: all \
         ranks were started again, and this one must end"
    )]
    StaleAttempt {
        /// The rank of this process in both attempts.
        rank: Rank,
        /// The restarts before this process was started, from 0.
        restart_count: u32,
        /// The restarts of the job by now, as the store counts them.
        current: i64,
    },
    /// Two ranks have different versions or options, or called different splits.
    #[error(
        "rank {mine} has {what} {my_value}, but rank {theirs} has {their_value}: start the same \
         program with the same settings as every rank"
    )]
    Disagree {
        /// The rank that returns this error.
        mine: Rank,
        /// The option that differs, or `version` or `called`.
        what: &'static str,
        /// The value on this rank, as text.
        my_value: String,
        /// The first rank whose value differs.
        theirs: Rank,
        /// The value that the other rank published, as text.
        their_value: String,
    },
    /// Two ranks run different builds of the program.
    #[error(
        "rank {mine} runs {my_program}, but rank {theirs} runs {their_program}: start copies of one build \
         everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    Builds {
        /// The rank that returns this error.
        mine: Rank,
        /// The path of this rank's program and its checksum.
        my_program: String,
        /// The first rank that runs another build.
        theirs: Rank,
        /// The path of the other rank's program and its checksum.
        their_program: String,
    },
    /// The transport that the options ask for does not connect two ranks.
    #[error("the {transport} transport cannot connect ranks {mine} and {theirs}: {reason}")]
    Transport {
        /// The only transport that the group's options allow.
        transport: TransportKind,
        /// The rank that returns this error.
        mine: Rank,
        /// The peer that the transport does not reach.
        theirs: Rank,
        /// The obstacle: another host, or another process.
        reason: &'static str,
    },
    /// A connection to another rank cannot be made, or ended during set-up.
    #[error("rank {mine} cannot reach rank {theirs} at {address}: {reason}")]
    Unreachable {
        /// The rank that tried to connect.
        mine: Rank,
        /// The rank that did not answer as expected.
        theirs: Rank,
        /// The IP address and port, the Unix socket, or `its control socket`.
        address: String,
        /// The error of the last attempt, or `it does not answer`.
        reason: String,
    },
    /// The group failed before this rank had joined it: a rank was lost, or gave up.
    #[error("the group failed while its ranks were connecting: {0}")]
    GroupFailed(Box<CollectiveError>),
    /// Some hosts of the job cannot connect to each other.
    #[error("{0}")]
    HostsApart(Box<Reach>),
    /// A rank published data that cannot be parsed, as of another version.
    #[error("rank {rank} published an address that this version does not understand: {reason}")]
    Address {
        /// The rank that published the data, in numbers of the group.
        rank: Rank,
        /// The message of the parser of this rank.
        reason: String,
    },
    /// A rank could not do its part when a group was split. The group that was split continues.
    #[error("rank {rank} could not do its part of the split: {reason}")]
    PeerUnable {
        /// The rank, in the group that was to be.
        rank: Rank,
        /// The error on that rank, or that it has no address.
        reason: String,
    },
    /// The group that was being split failed before its parts were connected.
    #[error("the group failed while it was being split: {cause}")]
    ParentFailed {
        /// The group's failure, or that another rank gave up the split.
        cause: String,
    },
    /// A subgroup was to contain a rank that the group lacks.
    #[error("there is no rank {rank} in a group of {world_size}")]
    NoSuchRank {
        /// The first such rank in the list of members.
        rank: Rank,
        /// The number of ranks in the group that was to be divided.
        world_size: WorldSize,
    },
    /// The list of a subgroup's members contains a rank twice.
    #[error("rank {rank} is named twice; a group has each rank once")]
    NamedTwice {
        /// The first rank in the list that occurs again.
        rank: Rank,
    },
    /// The process cannot open enough files for its connections.
    #[error(
        "a group of {world_size} ranks takes {needed} open files and more in each process, and this one \
         can open {left}: raise `ulimit -n`, or the limit of the container"
    )]
    OpenFiles {
        /// The number of ranks in the group.
        world_size: WorldSize,
        /// What the connections to them take.
        needed: u64,
        /// What the limit of this process leaves.
        left: u64,
    },
    /// Memory for links or shared buffers cannot be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The key pair with which this rank encrypts cannot be made.
    #[error("cannot make a key for TLS")]
    Identity(#[source] io::Error),
    /// The system refused a thread that set-up or the group needs.
    #[error("cannot start a communication thread")]
    Thread(#[source] io::Error),
    /// A system call of set-up failed, usually on a socket.
    #[error("{call} failed while the ranks were connecting")]
    System {
        /// The name of the call, such as `bind` or `accept`.
        call: &'static str,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

pub(crate) type Result<T, E = ConnectError> = std::result::Result<T, E>;
