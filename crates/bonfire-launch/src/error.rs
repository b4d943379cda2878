//! Why a job did not run to a good end.

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_collective::{SettingError, StoreError, TokenError};
use bonfire_sys::process::Interrupt;
use thiserror::Error;

use crate::environment::EnvError;
use crate::failure::{Exit, JobFailure};

/// The job did not run to a good end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A rank failed, and the job is not started again.
    #[error(transparent)]
    Rank(Box<JobFailure>),
    /// The user or the system asked the agent to end; all ranks were ended.
    #[error("interrupted by {by}; all ranks have ended")]
    Interrupted {
        /// The signal that asked for the end.
        by: Interrupt,
    },
    /// The program of the ranks does not exist.
    #[error("there is no program {}: check the spelling, or give its path", .program.display())]
    NoProgram {
        /// The program as it was given, a path or a name.
        program: PathBuf,
    },
    /// The program exists, and what is to run it does not.
    #[error(
        "{} is there, but its interpreter {interpreter} is not: install it, or correct the first line of the \
         script (\\r there is a line end of Windows)", .program.display()
    )]
    NoInterpreter {
        /// The script or binary that was found.
        program: PathBuf,
        /// The interpreter in its first line, or `or dynamic loader` without one.
        interpreter: String,
    },
    /// The program is a folder, or a file that nobody may execute.
    #[error("cannot start {}: {reason}", .program.display())]
    NotExecutable {
        /// The folder or file that was found.
        program: PathBuf,
        /// What it is, and what to do.
        reason: &'static str,
    },
    /// The system cannot start the program, though it exists.
    #[error("cannot start {} as rank {rank}", .program.display())]
    Spawn {
        /// The program as it was given, or the ssh client.
        program: PathBuf,
        /// The rank that was to run it; 0 for ssh.
        rank: u32,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The number of this host is not below the number of hosts.
    #[error("the node rank is {node_rank}, but there are {nnodes} nodes: node ranks count from 0")]
    NodeRankOutOfRange {
        /// The number of this host, which counts from 0.
        node_rank: u32,
        /// The number of hosts of the job.
        nnodes: NonZeroU32,
    },
    /// The number of all ranks does not fit its type.
    #[error("{nnodes} nodes of {nproc_per_node} ranks are more ranks than a job can have")]
    WorldTooLarge {
        /// The number of hosts of the job.
        nnodes: NonZeroU32,
        /// The number of ranks on each host.
        nproc_per_node: NonZeroU32,
    },
    /// TLS hides what is sent from listeners, but without a token nobody at the other end is known.
    #[error(
        "TLS needs a job token, without which it encrypts for anyone who connects: set BONFIRE_JOB_TOKEN to one \
         `openssl rand -hex 32` on every node"
    )]
    NoToken,
    /// The ranks of several hosts must agree on a port beforehand.
    #[error("a job on several nodes needs a port: give the same --master-port on every node")]
    NoPort,
    /// The store of the job, at which the hosts meet, cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Two launchers have the same number in one job.
    #[error(
        "there is another node {node_rank} in this job: give every host its own --node-rank, and \
         every job its own --master-port; after the end of a launcher start all hosts again"
    )]
    NodeTaken {
        /// The number that both have, from 0.
        node_rank: u32,
    },
    /// The launcher of a host did not come in time.
    #[error(
        "node {node} did not come within {} s: start the same command on every host, each with \
         its own --node-rank", .waited.as_secs()
    )]
    NodeMissing {
        /// The lowest number of a missing host, from 0.
        node: u32,
        /// The time since this launcher began to wait.
        waited: Duration,
    },
    /// The launchers of two hosts have different versions or flags.
    #[error("node {node_rank} has {what} {ours}, but node {other} has {theirs}: make them equal")]
    NodesDisagree {
        /// The number of this host, from 0.
        node_rank: u32,
        /// The flag that differs, or `version`.
        what: &'static str,
        /// The value of this host's launcher.
        ours: String,
        /// The number of the host that differs, from 0.
        other: u32,
        /// The value of the other host's launcher.
        theirs: String,
    },
    /// The launchers of two hosts are different builds, by a checksum of their files.
    #[error(
        "the launcher of node {node_rank} is {ours}, but that of node {other} is {theirs}: start copies of one \
         build everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    LaunchersDiffer {
        /// The number of this host, from 0.
        node_rank: u32,
        /// The path and checksum of this host's launcher.
        ours: String,
        /// The number of the host that differs, from 0.
        other: u32,
        /// The path and checksum of the other launcher.
        theirs: String,
    },
    /// The launcher of a host, or ssh on the way to it, ended badly; it has said why.
    #[error("host {host}: ssh, or the launcher there, {exit}")]
    Host {
        /// The name of the host in the hostfile.
        host: String,
        /// The code or signal with which ssh ended.
        exit: Exit,
    },
    /// The launcher of a host, or its host, is gone.
    #[error("node {node} is lost: its launcher no longer answers")]
    NodeLost {
        /// The number of the lost host, from 0.
        node: u32,
    },
    /// The launcher of another host failed, and not because of a rank.
    #[error("node {node} cannot continue: {reason}")]
    NodeUnable {
        /// The number of that host, from 0.
        node: u32,
        /// The message of the error that its launcher reported.
        reason: String,
    },
    /// The launcher of another host was asked to end by a signal.
    #[error("node {node} was interrupted; all ranks have ended")]
    NodeInterrupted {
        /// The number of that host, from 0.
        node: u32,
    },
    /// The folder or files for the output of ranks cannot be written.
    #[error("cannot keep the output of the ranks in files; see --log-dir")]
    Logs(#[source] io::Error),
    /// The secret of the job in the environment cannot be read or used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The operating system refused what the agent needs, such as a thread.
    #[error("the launcher cannot continue")]
    System(#[from] io::Error),
}

impl LaunchError {
    /// The exit code for a process whose only task was this job: that of the failed rank, as a shell would report it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rank(failure) => failure.exit.code(),
            Self::Host { exit, .. } => exit.code(),
            Self::Interrupted { by } => 128 + by.number(),
            _ => 1,
        }
    }
}
