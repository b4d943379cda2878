//! Why a job did not run to a good end.

#![allow(missing_docs, reason = "fields are named for what they hold")]

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
    #[error(transparent)]
    Rank(Box<JobFailure>),
    /// The user or the system asked the agent to end; all ranks were ended.
    #[error("interrupted by {by}; all ranks have ended")]
    Interrupted { by: Interrupt },
    #[error("there is no program {}: check the spelling, or give its path", .program.display())]
    NoProgram { program: PathBuf },
    /// The program exists, and what is to run it does not.
    #[error(
        "{} is there, but its interpreter {interpreter} is not: install it, or correct the first line of the \
         script (\\r there is a line end of Windows)", .program.display()
    )]
    NoInterpreter { program: PathBuf, interpreter: String },
    #[error("cannot start {} as rank {rank}", .program.display())]
    Spawn { program: PathBuf, rank: u32, source: io::Error },
    #[error("the node rank is {node_rank}, but there are {nnodes} nodes: node ranks count from 0")]
    NodeRankOutOfRange { node_rank: u32, nnodes: NonZeroU32 },
    #[error("{nnodes} nodes of {nproc_per_node} ranks are more ranks than a job can have")]
    WorldTooLarge { nnodes: NonZeroU32, nproc_per_node: NonZeroU32 },
    /// TLS hides what is sent from listeners, but without a token nobody at the other end is known.
    #[error(
        "TLS needs a job token, without which it encrypts for anyone who connects: set BONFIRE_JOB_TOKEN to one \
         `openssl rand -hex 32` on every node"
    )]
    NoToken,
    /// The ranks of several hosts must agree on a port beforehand.
    #[error("a job on several nodes needs a port: give the same --master-port on every node")]
    NoPort,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(
        "there is another node {node_rank} in this job: give every host its own --node-rank, and \
         every job its own --master-port; after the end of a launcher start all hosts again"
    )]
    NodeTaken { node_rank: u32 },
    #[error(
        "node {node} did not come within {} s: start the same command on every host, each with \
         its own --node-rank", .waited.as_secs()
    )]
    NodeMissing { node: u32, waited: Duration },
    #[error("node {node_rank} has {what} {ours}, but node {other} has {theirs}: make them equal")]
    NodesDisagree { node_rank: u32, what: &'static str, ours: String, other: u32, theirs: String },
    #[error(
        "the launcher of node {node_rank} is {ours}, but that of node {other} is {theirs}: start copies of one \
         build everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    LaunchersDiffer { node_rank: u32, ours: String, other: u32, theirs: String },
    /// The launcher of a host, or ssh on the way to it, ended badly; it has said why.
    #[error("host {host}: ssh, or the launcher there, {exit}")]
    Host { host: String, exit: Exit },
    #[error("node {node} is lost: its launcher no longer answers")]
    NodeLost { node: u32 },
    #[error("node {node} cannot continue: {reason}")]
    NodeUnable { node: u32, reason: String },
    #[error("node {node} was interrupted; all ranks have ended")]
    NodeInterrupted { node: u32 },
    #[error("cannot keep the output of the ranks in files; see --log-dir")]
    Logs(#[source] io::Error),
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
