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
    /// A variable is missing, without which the place of this process is unknown.
    #[error(
        "{variable} is not set; a worker needs {RANK}, {WORLD_SIZE}, {MASTER_ADDR} and \
         {MASTER_PORT}, which `bonfire run` and torchrun-style launchers set; under a launcher of \
         clusters export {variable} alone"
    )]
    Missing {
        /// The first variable that was looked for in vain.
        variable: &'static str,
    },
    /// A variable is no number of its range.
    #[error("{variable} must be a whole number from {min} to {max}, not \"{value}\"")]
    NotANumber {
        /// The name of the environment variable.
        variable: &'static str,
        /// The text of the variable as it was set.
        value: String,
        /// The least number that would be accepted.
        min: u32,
        /// The greatest number that would be accepted.
        max: u32,
    },
    /// A rank is not below the number of ranks.
    #[error("{variable} is {rank}, but {count_variable} is {count}: ranks count from 0")]
    RankOutOfRange {
        /// The variable: `RANK` or `LOCAL_RANK`.
        variable: &'static str,
        /// The value of that variable, counted from 0.
        rank: u32,
        /// The variable: `WORLD_SIZE` or `LOCAL_WORLD_SIZE`.
        count_variable: &'static str,
        /// The number of ranks in the job or on this host.
        count: u32,
    },
    /// A host has more ranks than the job.
    #[error(
        "{LOCAL_WORLD_SIZE} is {local_world_size}, more than {WORLD_SIZE}, which is {world_size}"
    )]
    LocalWorldTooLarge {
        /// The number of ranks on this host.
        local_world_size: u32,
        /// The number of ranks in the job.
        world_size: u32,
    },
    /// The variables of two launchers give this process different places.
    #[error(
        "two launchers disagree: {first} is {first_value}, but {second} is {second_value}; unset \
         what does not belong to this job"
    )]
    LaunchersDisagree {
        /// The variable that a launcher or the user exported, such as `RANK`.
        first: &'static str,
        /// The number in that variable.
        first_value: u32,
        /// The cluster's variable of the same meaning, such as `SLURM_PROCID`.
        second: &'static str,
        /// The number that follows from the cluster's variables.
        second_value: u32,
    },
    /// The ranks of several hosts have no address at which they meet.
    #[error(
        "{launcher} started ranks on several hosts but does not say where they meet: export \
         {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NoMeetingPlace {
        /// The name of the launcher that started them.
        launcher: &'static str,
    },
    /// Slurm has put rank 0 on another host than the one that the ranks take to be its host.
    #[error(
        "rank 0 is not on {first}, the first host of SLURM_STEP_NODELIST, as with --distribution=arbitrary: \
         export {MASTER_ADDR}, the host of rank 0, and {MASTER_PORT}, a free port there"
    )]
    NotOnFirstHost {
        /// The first host that `SLURM_STEP_NODELIST` names.
        first: String,
    },
    /// A variable of a cluster's launcher has an unknown form.
    #[error("{variable} makes no sense: \"{value}\"")]
    Unintelligible {
        /// The name of the environment variable.
        variable: &'static str,
        /// The text of the variable as it was set.
        value: String,
    },
    /// The address at which the ranks meet is empty.
    #[error("{MASTER_ADDR} is empty; it must be a host name or an address")]
    NoAddress,
    /// The variable that says who serves the store has an unknown value.
    #[error("{variable} must be 0, 1, nearby or torchrun, not \"{value}\"")]
    NotASwitch {
        /// The name of the environment variable.
        variable: &'static str,
        /// The text of the variable as it was set.
        value: String,
    },
    /// The name of the job is too long.
    #[error("{RUN_ID} has {bytes} bytes; at most {JOB_ID_BYTES_MAX} are allowed")]
    JobIdTooLong {
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// The name that identifies the host is too long.
    #[error("{HOST_ID} has {bytes} bytes; at most {HOST_ID_BYTES_MAX} are allowed")]
    HostIdTooLong {
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// What goes before the program's options is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The secret of the job cannot be read or used.
    #[error("{variable} is wrong")]
    Token {
        /// The variable: `BONFIRE_JOB_TOKEN` or `BONFIRE_JOB_TOKEN_FILE`.
        variable: &'static str,
        /// The fault of the text or of the file.
        source: TokenError,
    },
}
