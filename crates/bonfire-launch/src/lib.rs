//! Starts the ranks of a job, and gives each its place in it.
//!
//! [`AgentOptions::run`] is the agent: it starts the ranks of this host as processes and ends all of them
//! when one fails. [`detect_rank`] reads what it, torchrun and launchers of clusters say. The ranks communicate
//! through `bonfire-collective`; this crate never touches the data of a job.

#![forbid(unsafe_code)]

mod agent;
mod environment;
mod error;
mod failure;
#[cfg(feature = "clap")]
mod flags;
mod flights;
#[cfg(feature = "clap")]
mod hosts;
mod interrupt;
mod log;
mod output;
mod ranks;
mod terminal;
#[cfg(feature = "clap")]
mod usage;

pub use agent::{AgentOptions, Graces, Nodes, NumaBinding, OutputLabels};
pub use environment::{
    EnvError, LauncherOutput, detect_rank, detect_rank_in, draws_on, rank_from_env, rank_variables,
    sees_own_devices,
};
pub use error::LaunchError;
pub use failure::{Exit, JobFailure, PEER_FAILED_EXIT_CODE};
#[cfg(feature = "clap")]
pub use flags::{Endpoint, FlagError, LaunchFlags};
#[cfg(feature = "clap")]
pub use hosts::{HostFlags, HostsError, HostsOfFile};
pub use interrupt::StopRequest;
pub use log::log_to_stderr;
pub use output::{LogOptions, StreamChoice, StreamChoiceError, Streams};
pub use ranks::{RankCount, RankCountError};
pub use terminal::{TerminalClaim, TerminalError, claim_terminal};
#[cfg(feature = "clap")]
pub use usage::{parse_args, parse_args_from};
