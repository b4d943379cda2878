//! What can be wrong with an environment.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use bonfire_collective::{SettingError, TokenError};
use thiserror::Error;

use super::{
    HOST_ID, HOST_ID_BYTES_MAX, JOB_ID_BYTES_MAX, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK,
    RUN_ID, WORLD_SIZE,
};

/// The environment does not say who this process is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EnvError {
    #[error(
        "{variable} is not set; a worker needs {RANK}, {WORLD_SIZE}, {MASTER_ADDR} and \
         {MASTER_PORT}, which `bonfire run` and torchrun-style launchers set; under mpirun and srun \
         it needs none"
    )]
    Missing { variable: &'static str },
    #[error("{variable} must be a whole number from {min} to {max}, not \"{value}\"")]
    NotANumber { variable: &'static str, value: String, min: u32, max: u32 },
    #[error("{variable} is {rank}, but {count_variable} is {count}: ranks count from 0")]
    RankOutOfRange {
        /// The variable: `RANK` or `LOCAL_RANK`.
        variable: &'static str,
        rank: u32,
        /// The variable: `WORLD_SIZE` or `LOCAL_WORLD_SIZE`.
        count_variable: &'static str,
        count: u32,
    },
    #[error(
        "{LOCAL_WORLD_SIZE} is {local_world_size}, more than {WORLD_SIZE}, which is {world_size}"
    )]
    LocalWorldTooLarge { local_world_size: u32, world_size: u32 },
    #[error(
        "two launchers disagree: {first} is {first_value}, but {second} is {second_value}; unset \
         what does not belong to this job"
    )]
    LaunchersDisagree {
        first: &'static str,
        first_value: u32,
        second: &'static str,
        second_value: u32,
    },
    #[error(
        "{launcher} started ranks on several hosts but does not say where they meet: export \
         {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NoMeetingPlace { launcher: &'static str },
    /// Slurm has put rank 0 on another host than the one that the ranks take to be its host.
    #[error(
        "rank 0 is not on {first}, the first host of SLURM_STEP_NODELIST, as with --distribution=arbitrary: \
         export {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NotOnFirstHost { first: String },
    #[error("{variable} makes no sense: \"{value}\"")]
    Unintelligible { variable: &'static str, value: String },
    #[error("{MASTER_ADDR} is empty; it must be a host name or an address")]
    NoAddress,
    #[error("{variable} must be 0, 1, nearby or torchrun, not \"{value}\"")]
    NotASwitch { variable: &'static str, value: String },
    #[error("{RUN_ID} has {bytes} bytes; at most {JOB_ID_BYTES_MAX} are allowed")]
    JobIdTooLong { bytes: usize },
    #[error("{HOST_ID} has {bytes} bytes; at most {HOST_ID_BYTES_MAX} are allowed")]
    HostIdTooLong { bytes: usize },
    /// What goes before the program's options is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("{variable} is wrong")]
    Token {
        /// The variable: `BONFIRE_JOB_TOKEN` or `BONFIRE_JOB_TOKEN_FILE`.
        variable: &'static str,
        source: TokenError,
    },
}
