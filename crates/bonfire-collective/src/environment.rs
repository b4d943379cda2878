//! Who this process is: rank, world size and meeting point, from the environment of a launcher.
//!
//! The names are those of torchrun, so every launcher that can start such programs can start ours.
//! The environment is parsed once, here; nothing else reads these variables, and the launcher
//! writes them from the same type that parses them.

use std::ffi::OsString;

use bonfire_plan::{Rank, WorldSize};
use thiserror::Error;

use crate::overrides::{AlgorithmOverrides, OverrideError};
use crate::token::{JobToken, TokenError};

/// This process's number among all processes of the job, from 0.
pub(crate) const RANK: &str = "RANK";
/// The number of processes of the job.
pub(crate) const WORLD_SIZE: &str = "WORLD_SIZE";
/// This process's number among those of its host, from 0: it picks the device.
pub(crate) const LOCAL_RANK: &str = "LOCAL_RANK";
/// The number of processes of the job on this host.
pub(crate) const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The host name or address where the store listens.
pub(crate) const MASTER_ADDR: &str = "MASTER_ADDR";
/// The TCP port where the store listens.
pub(crate) const MASTER_PORT: &str = "MASTER_PORT";
/// The job's secret, as 64 hexadecimal digits; empty or missing for none.
pub(crate) const JOB_TOKEN: &str = "BONFIRE_JOB_TOKEN";
/// `1` when the launcher serves the store, `0` or missing when rank 0 does.
pub(crate) const AGENT_STORE: &str = "BONFIRE_AGENT_STORE";
/// Which job this is; part of every handshake, so that two jobs never meet.
pub(crate) const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// How often all ranks of the job were started anew.
pub(crate) const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// This host's number among the hosts of the job, from 0; the launcher sets it, nothing here reads it.
pub(crate) const NODE_RANK: &str = "NODE_RANK";
/// The same in torchrun's words.
pub(crate) const GROUP_RANK: &str = "GROUP_RANK";
/// The number of hosts; the launcher sets it, nothing here reads it.
pub(crate) const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// How often all ranks may be started anew; the launcher sets it, nothing here reads it.
pub(crate) const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Text that joins the identity of this host: ranks with different values count as being on
/// different hosts.
pub(crate) const HOST_ID: &str = "BONFIRE_HOST_ID";

/// Algorithms in place of those that Bonfire or the program chooses; see [`AlgorithmOverrides`].
pub(crate) const ALGORITHM: &str = "BONFIRE_ALGORITHM";

/// How the launcher prints this process's output: `lines` or `status`; see [`LauncherOutput`].
pub(crate) const OUTPUT: &str = "BONFIRE_OUTPUT";

/// The variables that make a process a worker. The address, the port and the token are not among
/// them, because a user may export those for the launcher.
const WORKER_VARIABLES: [&str; 4] = [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE];

/// Who serves the store through which the ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHost {
    /// The launcher does, and all ranks are its clients.
    Agent,
    /// Rank 0 does, at `MASTER_PORT`.
    RankZero,
}

/// What becomes of this process's output, which the process itself, seeing a pipe, could not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LauncherOutput {
    /// No launcher of this project reads it.
    Direct,
    /// The launcher prints it line by line, each with the rank before it.
    Lines,
    /// As `Lines`, on a terminal: text that ends in a carriage return instead of a newline is shown
    /// as a status line, each in place of the last, as progress bars want it.
    StatusLine,
}

impl LauncherOutput {
    /// Reads the environment of this process.
    pub fn detect() -> Self {
        match process_variable(OUTPUT) {
            Some(value) if value == Self::Lines.variable() => Self::Lines,
            Some(value) if value == Self::StatusLine.variable() => Self::StatusLine,
            _ => Self::Direct,
        }
    }

    /// What the launcher writes.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Lines => "lines",
            Self::StatusLine => "status",
        }
    }
}

/// A worker's place in its job.
#[derive(Clone, Debug)]
pub struct RankEnv {
    /// This process among all processes.
    pub rank: Rank,
    /// The number of processes.
    pub world_size: WorldSize,
    /// This process among those of its host.
    pub local_rank: u32,
    /// The number of processes on this host.
    pub local_world_size: u32,
    /// The host name or address of the store.
    pub master_addr: String,
    /// The port of the store.
    pub master_port: u16,
    /// The secret of the job.
    pub job_token: JobToken,
    /// Who serves the store.
    pub agent_store: StoreHost,
    /// The name of the job, empty if it has none. It is part of every handshake: processes of jobs
    /// with different names never meet, even where they have the same token or none.
    pub job_id: String,
    /// How often all ranks of the job were started anew after a failure. A rank that is left over
    /// from an earlier attempt is refused.
    pub restart_count: u32,
    /// `BONFIRE_HOST_ID`, at most [`HOST_ID_BYTES_MAX`] long: ranks with different texts count as
    /// being on different hosts, though they may share one. Several hosts can so be rehearsed on one
    /// machine; ranks on "different hosts" connect by TCP. It divides only: ranks on different
    /// machines, or in different network namespaces, stay on different hosts whatever it says.
    pub host_id: Option<String>,
    /// `BONFIRE_ALGORITHM`: algorithms in place of those that Bonfire or the program chooses. All
    /// ranks need the same.
    pub overrides: AlgorithmOverrides,
}

/// The longest `BONFIRE_HOST_ID`, in bytes: a host name's length.
pub const HOST_ID_BYTES_MAX: usize = 64;

/// The longest name of a job, in bytes.
pub const JOB_ID_BYTES_MAX: usize = 256;

/// The environment does not say who this process is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A variable that has no default is missing.
    #[error(
        "{variable} is not set; a worker needs {RANK}, {WORLD_SIZE}, {MASTER_ADDR} and \
         {MASTER_PORT}, which `bonfire run` and torchrun-style launchers set"
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
    /// The address is empty.
    #[error("{MASTER_ADDR} is empty; it must be a host name or an address")]
    NoAddress,
    /// A switch is neither on nor off.
    #[error("{variable} must be 0 or 1, not \"{value}\"")]
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
    /// There are no such algorithms.
    #[error("{ALGORITHM} is wrong")]
    Algorithm {
        /// What is wrong with it.
        source: OverrideError,
    },
    /// The job token is malformed.
    #[error("{JOB_TOKEN} is wrong")]
    Token {
        /// What is wrong with it.
        source: TokenError,
    },
}

impl RankEnv {
    /// Reads the environment of this process, all variables required.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_lookup(process_variable)
    }

    /// Reads the environment of this process; `None` when nothing in it says that a launcher
    /// started this process, an error when only a part of it does.
    pub fn detect() -> Result<Option<Self>, EnvError> {
        Self::detect_in(process_variable)
    }

    /// As [`detect`](Self::detect), from any key-value source.
    pub fn detect_in(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, EnvError> {
        if WORKER_VARIABLES
            .iter()
            .all(|&variable| lookup(variable).is_none())
        {
            return Ok(None);
        }
        Self::from_lookup(lookup).map(Some)
    }

    /// As [`from_env`](Self::from_env), from any key-value source.
    ///
    /// Without `LOCAL_WORLD_SIZE` the whole world is taken to be on this host; without `LOCAL_RANK`
    /// the hosts are taken to hold equally many consecutive ranks, as torchrun places them.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, EnvError> {
        let source = Source { lookup };
        let rank = source.required_number(RANK, (0, u32::MAX - 1))?;
        let world_size = source.required_number(WORLD_SIZE, (1, u32::MAX))?;
        check_rank((RANK, rank), (WORLD_SIZE, world_size))?;

        let local_world_size = source
            .number(LOCAL_WORLD_SIZE, (1, u32::MAX))?
            .unwrap_or(world_size);
        if local_world_size > world_size {
            return Err(EnvError::LocalWorldTooLarge {
                local_world_size,
                world_size,
            });
        }
        let local_rank = source
            .number(LOCAL_RANK, (0, u32::MAX - 1))?
            .unwrap_or(rank % local_world_size);
        check_rank(
            (LOCAL_RANK, local_rank),
            (LOCAL_WORLD_SIZE, local_world_size),
        )?;

        let master_addr = source.required(MASTER_ADDR)?;
        if master_addr.is_empty() {
            return Err(EnvError::NoAddress);
        }
        let master_port = source.required_number(MASTER_PORT, (1, u16::MAX.into()))?;

        Ok(Self {
            rank: Rank::new(rank),
            world_size: WorldSize::new(world_size).expect("a world of zero was refused above"),
            local_rank,
            local_world_size,
            master_addr,
            master_port: u16::try_from(master_port).expect("the range was checked above"),
            job_token: source.job_token()?,
            agent_store: source.store_host()?,
            job_id: source.job_id()?,
            restart_count: source.number(RESTART_COUNT, (0, u32::MAX))?.unwrap_or(0),
            host_id: source.host_id()?,
            overrides: source.overrides()?,
        })
    }

    /// The variables that make a child process the worker which this describes: what
    /// [`from_lookup`](Self::from_lookup) reads.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let agent_store = match self.agent_store {
            StoreHost::Agent => "1",
            StoreHost::RankZero => "0",
        };
        let job_token = if self.job_token.is_empty() {
            String::new()
        } else {
            self.job_token.to_hex()
        };
        let mut variables = vec![
            (RANK, self.rank.get().to_string()),
            (WORLD_SIZE, self.world_size.get().to_string()),
            (LOCAL_RANK, self.local_rank.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (MASTER_ADDR, self.master_addr.clone()),
            (MASTER_PORT, self.master_port.to_string()),
            (JOB_TOKEN, job_token),
            (AGENT_STORE, agent_store.to_owned()),
            (RUN_ID, self.job_id.clone()),
            (RESTART_COUNT, self.restart_count.to_string()),
        ];
        // What is not set here, the child inherits.
        if let Some(host_id) = &self.host_id {
            variables.push((HOST_ID, host_id.clone()));
        }
        if !self.overrides.is_empty() {
            variables.push((ALGORITHM, self.overrides.to_string()));
        }
        variables
    }

    /// What the connections of this job prove: the token, bound to the name of the job.
    pub(crate) fn connection_token(&self) -> JobToken {
        self.job_token.for_job(&self.job_id)
    }
}

impl AlgorithmOverrides {
    /// What `BONFIRE_ALGORITHM` says in the environment of this process; nothing if it is not set.
    /// For programs whose ranks are threads; processes have it in [`RankEnv`].
    pub fn from_env() -> Result<Self, EnvError> {
        let lookup = process_variable;
        Source { lookup }.overrides()
    }
}

/// The job token that the user set for this process with `BONFIRE_JOB_TOKEN`, if any: how the
/// launchers of several hosts come to share one.
pub(crate) fn job_token_from_env() -> Result<Option<JobToken>, EnvError> {
    let token = Source {
        lookup: process_variable,
    }
    .job_token()?;
    Ok((!token.is_empty()).then_some(token))
}

fn process_variable(variable: &str) -> Option<OsString> {
    std::env::var_os(variable)
}

fn check_rank(
    (variable, rank): (&'static str, u32),
    (count_variable, count): (&'static str, u32),
) -> Result<(), EnvError> {
    if rank < count {
        return Ok(());
    }
    Err(EnvError::RankOutOfRange {
        variable,
        rank,
        count_variable,
        count,
    })
}

/// A key-value source with typed readings.
struct Source<F> {
    lookup: F,
}

impl<F: Fn(&str) -> Option<OsString>> Source<F> {
    /// Text that is not Unicode becomes text that no parser accepts, which is what it deserves.
    fn text(&self, variable: &'static str) -> Option<String> {
        (self.lookup)(variable).map(|value| value.to_string_lossy().into_owned())
    }

    fn required(&self, variable: &'static str) -> Result<String, EnvError> {
        self.text(variable).ok_or(EnvError::Missing { variable })
    }

    fn number(
        &self,
        variable: &'static str,
        (min, max): (u32, u32),
    ) -> Result<Option<u32>, EnvError> {
        let Some(value) = self.text(variable) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(EnvError::NotANumber {
                variable,
                value,
                min,
                max,
            }),
        }
    }

    fn required_number(&self, variable: &'static str, range: (u32, u32)) -> Result<u32, EnvError> {
        self.number(variable, range)?
            .ok_or(EnvError::Missing { variable })
    }

    fn job_token(&self) -> Result<JobToken, EnvError> {
        match self.text(JOB_TOKEN) {
            None => Ok(JobToken::empty()),
            Some(text) if text.is_empty() => Ok(JobToken::empty()),
            Some(text) => {
                JobToken::from_hex(text.trim()).map_err(|source| EnvError::Token { source })
            }
        }
    }

    fn overrides(&self) -> Result<AlgorithmOverrides, EnvError> {
        let text = self.text(ALGORITHM).unwrap_or_default();
        text.parse()
            .map_err(|source| EnvError::Algorithm { source })
    }

    fn job_id(&self) -> Result<String, EnvError> {
        let job_id = self.text(RUN_ID).unwrap_or_default();
        if job_id.len() > JOB_ID_BYTES_MAX {
            let bytes = job_id.len();
            return Err(EnvError::JobIdTooLong { bytes });
        }
        Ok(job_id)
    }

    fn host_id(&self) -> Result<Option<String>, EnvError> {
        let host_id = self.text(HOST_ID).filter(|text| !text.is_empty());
        match &host_id {
            Some(text) if text.len() > HOST_ID_BYTES_MAX => {
                Err(EnvError::HostIdTooLong { bytes: text.len() })
            }
            _ => Ok(host_id),
        }
    }

    fn store_host(&self) -> Result<StoreHost, EnvError> {
        let Some(value) = self.text(AGENT_STORE) else {
            return Ok(StoreHost::RankZero);
        };
        match value.trim() {
            "1" | "true" => Ok(StoreHost::Agent),
            "" | "0" | "false" => Ok(StoreHost::RankZero),
            _ => Err(EnvError::NotASwitch {
                variable: AGENT_STORE,
                value,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
