//! Who this process is: rank, world size and meeting point, from the environment of a launcher.
//!
//! The names are those of torchrun, so every launcher that can start such programs can start ours; those of launchers
//! of clusters are in `cluster`. The environment is parsed once, here; nothing else reads these variables, and the
//! launcher writes them from the same type that parses them.

mod cluster;
mod error;
mod source;

use std::ffi::OsString;
use std::io::IsTerminal;

use bonfire_collective::{EnvSettings, JobToken, RankEnv, StoreHost};
use bonfire_plan::{Rank, WorldSize};

use self::cluster::{Cluster, LAUNCHERS};
use self::source::Source;
use crate::ranks::listed_devices;

pub use self::error::EnvError;

/// This process's number among all processes of the job, from 0.
pub(crate) const RANK: &str = "RANK";
pub(crate) const WORLD_SIZE: &str = "WORLD_SIZE";
/// This process's number among those of its host, from 0: it picks the device.
pub(crate) const LOCAL_RANK: &str = "LOCAL_RANK";
/// The number of processes of the job on this host.
pub(crate) const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// The host name or address where the store listens.
pub(crate) const MASTER_ADDR: &str = "MASTER_ADDR";
pub(crate) const MASTER_PORT: &str = "MASTER_PORT";
/// The job's secret, as 64 hexadecimal digits; empty or missing for none.
pub(crate) const JOB_TOKEN: &str = "BONFIRE_JOB_TOKEN";
/// A file that holds it, for those who do not want it in the environment.
pub(crate) const JOB_TOKEN_FILE: &str = "BONFIRE_JOB_TOKEN_FILE";
/// Who serves the store: see [`StoreHost`].
pub(crate) const AGENT_STORE: &str = "BONFIRE_AGENT_STORE";
/// `True` when torchrun's agent serves a store of its own at `MASTER_PORT`.
pub(crate) const TORCHRUN_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Set in every pod of Kubernetes.
pub(crate) const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";
/// Which job this is; part of every handshake, so that two jobs never meet.
pub(crate) const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// How often all ranks of the job were started again.
pub(crate) const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// This host's number among the hosts of the job, from 0; the launcher sets it, nothing here reads it.
pub(crate) const NODE_RANK: &str = "NODE_RANK";
/// The same in torchrun's words.
pub(crate) const GROUP_RANK: &str = "GROUP_RANK";
/// The number of hosts; the launcher sets it, nothing here reads it.
pub(crate) const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// How often all ranks may be started again; the launcher sets it, nothing here reads it.
pub(crate) const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Text that joins the identity of this host: ranks with different values count as being on different hosts.
pub(crate) const HOST_ID: &str = "BONFIRE_HOST_ID";
/// How the launcher prints this process's output: `lines` or `status`; see [`LauncherOutput`].
pub(crate) const OUTPUT: &str = "BONFIRE_OUTPUT";
/// The path of the launcher's terminal, for the rank that may draw on it; see
/// [`claim_terminal`](crate::claim_terminal).
pub(crate) const TERMINAL: &str = "BONFIRE_TERMINAL";
/// The process of the launcher that started this one.
pub(crate) const LAUNCHER: &str = "BONFIRE_LAUNCHER";
/// The variables that make a process a worker. The address, the port and the token are not among
/// them, because a user may export those for the launcher.
const WORKER_VARIABLES: [&str; 4] = [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE];
/// The variables that say that `WORKER_VARIABLES` come from an agent, whatever else is set around it.
const AGENT_VARIABLES: [&str; 2] = [AGENT_STORE, RUN_ID];
/// The longest `BONFIRE_HOST_ID`, in bytes: a host name's length.
const HOST_ID_BYTES_MAX: usize = 64;
const JOB_ID_BYTES_MAX: usize = 256;

/// Where a rank is among all, and among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    rank: u32,
    world_size: u32,
    local_rank: u32,
    local_world_size: u32,
}

/// What becomes of this process's output, which the process itself, seeing a pipe, cannot find out.
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

    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Lines => "lines",
            Self::StatusLine => "status",
        }
    }
}

/// Whether a stream is a terminal on which text can be drawn and coloured. One that calls itself dumb (`TERM=dumb`, as of
/// editors and build servers) shows the sequences for it as they are.
pub fn draws_on(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && process_variable("TERM").is_none_or(|term| term != "dumb")
}

/// Reads the environment of this process, which a launcher must have started.
pub fn rank_from_env() -> Result<RankEnv, EnvError> {
    rank_from_lookup(process_variable)
}

/// Reads the environment of this process; `None` when nothing in it says that a launcher
/// started this process as one of several, an error when only a part of it does.
pub fn detect_rank() -> Result<Option<RankEnv>, EnvError> {
    detect_rank_in(process_variable)
}

/// As [`detect_rank`], from any key-value source.
pub fn detect_rank_in(
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<RankEnv>, EnvError> {
    let source = Source { lookup: &lookup };
    let is_worker = source.has_any(&WORKER_VARIABLES);
    if is_worker && source.has_any(&AGENT_VARIABLES) {
        return explicit(&source).map(Some);
    }
    match Cluster::detect(&source)? {
        // The only process of a step or a job, as a shell that Slurm gives to a user, may start ranks of its own.
        Some(cluster) if cluster.place.world_size == 1 && !is_worker => Ok(None),
        Some(cluster) => of_cluster(&source, cluster).map(Some),
        None if is_worker => explicit(&source).map(Some),
        None => Ok(None),
    }
}

/// As [`rank_from_env`], from any key-value source.
///
/// The innermost launcher counts: an agent (`bonfire run`, a program that launches itself,
/// torchrun) over everything else, then the first of the launchers of clusters that speaks. `RANK`,
/// `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` that no agent has set must agree with it.
///
/// Without `LOCAL_WORLD_SIZE` the whole world is taken to be on this host, but in a pod of
/// Kubernetes each rank to have a pod of its own; without `LOCAL_RANK` the hosts are taken to
/// hold equally many consecutive ranks, as torchrun places them.
fn rank_from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<RankEnv, EnvError> {
    let source = Source { lookup: &lookup };
    if source.has_any(&WORKER_VARIABLES) && source.has_any(&AGENT_VARIABLES) {
        return explicit(&source);
    }
    match Cluster::detect(&source)? {
        Some(cluster) => of_cluster(&source, cluster),
        None => explicit(&source),
    }
}

fn explicit(source: &Source<'_>) -> Result<RankEnv, EnvError> {
    let rank = source.required_number(RANK, 0..=u32::MAX - 1)?;
    let world_size = source.required_number(WORLD_SIZE, 1..=u32::MAX)?;
    let alone_in_pod = source.has_any(&[KUBERNETES]) && !source.has_any(&AGENT_VARIABLES);
    let local_world_size = source
        .number(LOCAL_WORLD_SIZE, 1..=u32::MAX)?
        .unwrap_or(if alone_in_pod { 1 } else { world_size });
    let local_rank =
        source.number(LOCAL_RANK, 0..=u32::MAX - 1)?.unwrap_or(rank % local_world_size);
    let place = Place { rank, world_size, local_rank, local_world_size };
    // First who it is: a wrong number matters more than a missing address.
    let worker = at(source, place)?;
    let agent_store = source.store_host()?;
    let (master_addr, master_port) = match agent_store {
        StoreHost::Nearby => (String::new(), 0),
        _ => source.master()?,
    };
    let restart_count = source.number(RESTART_COUNT, 0..=u32::MAX)?.unwrap_or(0);
    let env = RankEnv {
        master_addr,
        master_port,
        agent_store,
        job_id: source.job_id()?,
        restart_count,
        ..worker
    };
    Ok(env)
}

fn of_cluster(source: &Source<'_>, cluster: Cluster) -> Result<RankEnv, EnvError> {
    // What a user exports for one rank reaches all.
    cluster.agree(source, &WORKER_VARIABLES)?;
    let exported = source.has_any(&[MASTER_ADDR]) && source.has_any(&[MASTER_PORT]);
    let (agent_store, (master_addr, master_port)) = if exported {
        (StoreHost::RankZero, source.master()?)
    } else if cluster.is_on_one_host() {
        (StoreHost::Nearby, (String::new(), 0))
    } else {
        (StoreHost::RankZero, cluster.master(source)?)
    };
    Ok(RankEnv {
        master_addr,
        master_port,
        agent_store,
        job_id: cluster.job_id(),
        ..at(source, cluster.place)?
    })
}

/// A worker at a checked place, with what does not depend on the launcher.
fn at(source: &Source<'_>, place: Place) -> Result<RankEnv, EnvError> {
    let Place { rank, world_size, local_rank, local_world_size } = place;
    check_rank(RANK, rank, WORLD_SIZE, world_size)?;
    if local_world_size > world_size {
        return Err(EnvError::LocalWorldTooLarge { local_world_size, world_size });
    }
    check_rank(LOCAL_RANK, local_rank, LOCAL_WORLD_SIZE, local_world_size)?;
    Ok(RankEnv {
        rank: Rank::new(rank),
        world_size: WorldSize::new(world_size).expect("a rank is below it, so it is not zero"),
        local_rank,
        local_world_size,
        master_addr: String::new(),
        master_port: 0,
        job_token: source.job_token()?,
        agent_store: StoreHost::RankZero,
        job_id: String::new(),
        restart_count: 0,
        host_id: source.host_id()?,
        launcher_id: source.text(LAUNCHER).and_then(|id| id.parse().ok()),
        settings: EnvSettings::from_lookup(source.lookup)?,
    })
}

/// Whether the launcher of this rank has shown it CUDA devices of its own, as Slurm does with
/// `--gpus-per-task`. An agent, which hands its own environment to all ranks, has not.
pub fn sees_own_devices() -> bool {
    sees_own_devices_in(process_variable)
}

fn sees_own_devices_in(lookup: impl Fn(&str) -> Option<OsString>) -> bool {
    let source = Source { lookup: &lookup };
    let shown = source.text("CUDA_VISIBLE_DEVICES");
    LAUNCHERS.iter().any(|launcher| source.has_any(launcher.own_devices.as_slice()))
        && !source.has_any(&AGENT_VARIABLES)
        && shown.is_some_and(|list| listed_devices(&list) == 1)
}

/// The variables with which launchers of clusters number the hosts of a job that they start once per host.
#[cfg(feature = "clap")]
pub(crate) fn node_variables() -> impl Iterator<Item = &'static str> {
    LAUNCHERS.iter().filter_map(|launcher| launcher.node)
}

/// The variables that make a child process the worker which this describes: what [`rank_from_env`] reads.
pub fn rank_variables(rank: &RankEnv) -> Vec<(&'static str, String)> {
    let job_token = if rank.job_token.is_empty() { String::new() } else { rank.job_token.to_hex() };
    let mut variables = vec![
        (RANK, rank.rank.get().to_string()),
        (WORLD_SIZE, rank.world_size.get().to_string()),
        (LOCAL_RANK, rank.local_rank.to_string()),
        (LOCAL_WORLD_SIZE, rank.local_world_size.to_string()),
        (MASTER_ADDR, rank.master_addr.clone()),
        (MASTER_PORT, rank.master_port.to_string()),
        (JOB_TOKEN, job_token),
        (AGENT_STORE, store_host_variable(rank.agent_store).to_owned()),
        (RUN_ID, rank.job_id.clone()),
        (RESTART_COUNT, rank.restart_count.to_string()),
    ];
    // What is not set here, the child inherits.
    if let Some(host_id) = &rank.host_id {
        variables.push((HOST_ID, host_id.clone()));
    }
    if let Some(launcher_id) = rank.launcher_id {
        variables.push((LAUNCHER, launcher_id.to_string()));
    }
    variables.extend(rank.settings.variables());
    variables
}

/// The job token that the user set for this process with `BONFIRE_JOB_TOKEN`, if any: how the
/// launchers of several hosts come to share one.
pub(crate) fn job_token_from_env() -> Result<Option<JobToken>, EnvError> {
    let token = Source { lookup: &process_variable }.job_token()?;
    Ok((!token.is_empty()).then_some(token))
}

fn store_host_variable(host: StoreHost) -> &'static str {
    match host {
        StoreHost::Agent => "1",
        StoreHost::RankZero => "0",
        StoreHost::Nearby => "nearby",
        StoreHost::Torchrun => "torchrun",
    }
}

fn process_variable(variable: &str) -> Option<OsString> {
    std::env::var_os(variable)
}

fn check_rank(
    variable: &'static str,
    rank: u32,
    count_variable: &'static str,
    count: u32,
) -> Result<(), EnvError> {
    if rank < count {
        return Ok(());
    }
    Err(EnvError::RankOutOfRange { variable, rank, count_variable, count })
}

#[cfg(test)]
mod tests;
