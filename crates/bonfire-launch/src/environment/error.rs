//! What can be wrong with an environment.

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
    /// A variable that has no default is missing.
    #[error(
        "{variable} is not set; a worker needs {RANK}, {WORLD_SIZE}, {MASTER_ADDR} and \
         {MASTER_PORT}, which `bonfire run` and torchrun-style launchers set; under mpirun and srun \
         it needs none"
    )]
    Missing {
        /// The missing variable.
        variable: &'static str,
    },
    /// A variable is not a whole number in its range.
    #[error("{variable} must be a whole number from {min} to {max}, not \"{value}\"")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// The smallest number accepted.
        min: u32,
        /// The largest number accepted.
        max: u32,
    },
    /// A rank is not smaller than the number of ranks.
    #[error("{variable} is {rank}, but {count_variable} is {count}: ranks count from 0")]
    RankOutOfRange {
        /// `RANK` or `LOCAL_RANK`.
        variable: &'static str,
        /// The rank found.
        rank: u32,
        /// `WORLD_SIZE` or `LOCAL_WORLD_SIZE`.
        count_variable: &'static str,
        /// The number of ranks.
        count: u32,
    },
    /// One host cannot hold more ranks than the world.
    #[error(
        "{LOCAL_WORLD_SIZE} is {local_world_size}, more than {WORLD_SIZE}, which is {world_size}"
    )]
    LocalWorldTooLarge {
        /// The ranks of this host.
        local_world_size: u32,
        /// The ranks of the world.
        world_size: u32,
    },
    /// Two launchers say different things.
    #[error(
        "two launchers disagree: {first} is {first_value}, but {second} is {second_value}; unset \
         what does not belong to this job"
    )]
    LaunchersDisagree {
        /// A variable of one.
        first: &'static str,
        /// What it says.
        first_value: u32,
        /// A variable of the other.
        second: &'static str,
        /// What it says.
        second_value: u32,
    },
    /// The ranks are on several hosts, and the cluster does not say where rank 0 is.
    #[error(
        "{launcher} started ranks on several hosts but does not say where they meet: export \
         {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NoMeetingPlace {
        /// What started the ranks.
        launcher: &'static str,
    },
    /// Slurm has put rank 0 on another host than the one that the ranks take to be its host.
    #[error(
        "rank 0 is not on {first}, the first host of SLURM_STEP_NODELIST, as with --distribution=arbitrary: \
         export {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NotOnFirstHost {
        /// The first host.
        first: String,
    },
    /// A list of hosts or of tasks makes no sense.
    #[error("{variable} makes no sense: \"{value}\"")]
    Unintelligible {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// The address is empty.
    #[error("{MASTER_ADDR} is empty; it must be a host name or an address")]
    NoAddress,
    /// A switch is neither on nor off.
    #[error("{variable} must be 0, 1, nearby or torchrun, not \"{value}\"")]
    NotASwitch {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// The name of the job is too long.
    #[error("{RUN_ID} has {bytes} bytes; at most {JOB_ID_BYTES_MAX} are allowed")]
    JobIdTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The host's extra name is too long.
    #[error("{HOST_ID} has {bytes} bytes; at most {HOST_ID_BYTES_MAX} are allowed")]
    HostIdTooLong {
        /// Its length.
        bytes: usize,
    },
    /// What goes before the program's options is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The job token is malformed.
    #[error("{variable} is wrong")]
    Token {
        /// `BONFIRE_JOB_TOKEN` or `BONFIRE_JOB_TOKEN_FILE`.
        variable: &'static str,
        /// What is wrong with it.
        source: TokenError,
    },
}
