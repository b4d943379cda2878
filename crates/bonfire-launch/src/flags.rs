//! The launcher's flags, in torchrun's spelling, for every program with a command line.

use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_collective::Tls;
use clap::{ArgAction, Args};
use thiserror::Error;

use crate::agent::{AgentOptions, Graces, Nodes, NumaBinding};
use crate::environment::node_variables;
use crate::hosts::{HostFlags, HostsError, HostsOfFile};
use crate::output::{LogOptions, StreamChoice};
use crate::ranks::{RankCount, RankCountError, VISIBLE_DEVICES};

/// The variable with which PyTorchJob, as torchrun, gives the number of ranks.
const PET_NPROC_PER_NODE: &str = "PET_NPROC_PER_NODE";

/// How to start the ranks of a job: torchrun's flags, each also with underscores.
///
/// Flatten it into a clap structure, and turn it into options for the agent with
/// [`options`](Self::options). It takes no letters, which are the program's; a launcher of other programs
/// gives `--redirects` and `--tee` torchrun's `-r` and `-t` itself.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Launching")]
pub struct LaunchFlags {
    /// Ranks to start on this host: a number, `gpu` (one per GPU), `cpu` (one per core), or `auto`
    /// (one per GPU, or per core without one); 1 if nothing says otherwise
    #[arg(
        long,
        alias = "nproc_per_node",
        visible_alias = "nproc",
        value_name = "N|auto|gpu|cpu",
        env = "BONFIRE_NPROC"
    )]
    pub nproc_per_node: Option<RankCount>,

    /// Hosts of the job; run this command once on each
    #[arg(
        long,
        value_name = "N",
        env = "PET_NNODES",
        default_value = "1",
        value_parser = hosts
    )]
    pub nnodes: Option<NonZeroU32>,

    /// This host's number, from 0; host 0 is where the ranks meet. By default the
    /// number that the cluster's launcher gives, else 0
    #[arg(long, alias = "node_rank", value_name = "N", env = "PET_NODE_RANK")]
    pub node_rank: Option<u32>,

    /// Name or address of host 0 as the other hosts see it; needed with several hosts
    #[arg(long, alias = "master_addr", value_name = "HOST", env = "PET_MASTER_ADDR")]
    pub master_addr: Option<String>,

    /// TCP port on host 0 where the ranks meet; needed with several hosts. On one the system chooses it,
    /// also if it is 0
    #[arg(long, alias = "master_port", value_name = "PORT", env = "PET_MASTER_PORT")]
    pub master_port: Option<u16>,

    /// All ranks are on this host, and no port is needed; so it is anyway with one host
    #[arg(long, action = ArgAction::SetTrue)]
    pub standalone: bool,

    /// Start all ranks again up to N times when one fails; the program resumes from its last checkpoint
    #[arg(
        long,
        alias = "max_restarts",
        value_name = "N",
        env = "PET_MAX_RESTARTS",
        default_value = "0"
    )]
    pub max_restarts: u32,

    /// Keep the output of each rank in files below this folder: JOB/attempt_N/RANK/stdout.log
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,

    /// Streams that go to files instead of the screen: 0 none, 1 stdout, 2 stderr, 3 both; or
    /// by local rank, as in 0:1,1:3
    #[arg(long, value_name = "STREAMS", default_value = "0")]
    pub redirects: Option<StreamChoice>,

    /// Streams that go to files as well as to the screen, in the same form
    #[arg(long, value_name = "STREAMS", default_value = "0")]
    pub tee: Option<StreamChoice>,

    /// Host 0 and its port in one, HOST:PORT, as torchrun has it: the same as --master-addr and --master-port
    #[arg(
        long,
        alias = "rdzv_endpoint",
        value_name = "HOST:PORT",
        env = "PET_RDZV_ENDPOINT",
        value_parser = endpoint,
        conflicts_with_all = ["master_addr", "master_port"]
    )]
    pub rdzv_endpoint: Option<Endpoint>,

    /// How torchrun's agents meet; accepted for its command lines, and the same here whatever it says
    #[arg(
        long,
        alias = "rdzv_backend",
        value_name = "c10d|static",
        value_parser = ["c10d", "static"]
    )]
    pub rdzv_backend: Option<String>,

    /// The name of the job, the same on every host: jobs with different names never meet
    #[arg(long, alias = "rdzv_id", visible_alias = "rdzv-id", value_name = "NAME")]
    pub job_id: Option<String>,

    /// Which connections are encrypted: off, hosts (those between hosts) or all (every TCP
    /// connection); the same on every host. By default what BONFIRE_TLS says, else off
    #[arg(long, value_name = "off|hosts|all")]
    pub tls: Option<Tls>,

    /// Seconds that ranks have to end after SIGTERM, before SIGKILL; by default 10 after Ctrl-C and 3 after a failure
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS")]
    pub shutdown_timeout: Option<u32>,

    /// Bind each rank to the cores, and with that to the memory, of the NUMA node of its GPU; without one the ranks
    /// are spread over the nodes. Nothing is bound on a host with one node
    #[arg(long, alias = "numa_binding", value_name = "node")]
    pub numa_binding: Option<NumaBinding>,

    /// Hosts that this command starts itself, over ssh.
    #[command(flatten)]
    pub hosts: HostFlags,
}

/// Where host 0 is: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name or address; an IPv6 address stands in brackets.
    pub host: String,
    /// The port where the ranks meet; on one host the system chooses it if it is 0.
    pub port: u16,
}

/// The flags contradict each other or lack something.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlagError {
    /// The only host of a job has another number than 0.
    #[error("--node-rank is {0}, but --nnodes is 1")]
    NodeRankOfOne(u32),
    /// `--standalone` is given with a number of hosts above 1.
    #[error("--standalone is for one host, but --nnodes is {0}")]
    StandaloneOfSeveral(NonZeroU32),
    /// The address at which several hosts meet is missing.
    #[error("several nodes need --master-addr: the name or address of node 0")]
    NoMasterAddr,
    /// The port at which several hosts meet is missing or 0.
    #[error("several nodes need --master-port: a free port on node 0")]
    NoMasterPort,
    /// The cluster's number of this host is not a number.
    #[error("{variable} must be a whole number, not \"{value}\"")]
    NotANumber {
        /// The variable of the cluster's launcher.
        variable: &'static str,
        /// The text of the variable as it was set.
        value: String,
    },
    /// The hosts of a hostfile, or the GPUs of this one, cannot be had.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The number of ranks in the environment cannot be read.
    #[error("{variable} is \"{value}\"")]
    RankCount {
        /// The name of the variable, `PET_NPROC_PER_NODE`.
        variable: &'static str,
        /// The text of the variable as it was set.
        value: String,
        /// The parser's error about that text.
        source: RankCountError,
    },
}

impl LaunchFlags {
    /// The number of ranks that was asked for: by the flag, by `BONFIRE_NPROC`, by the GPUs that are chosen, by
    /// `PET_NPROC_PER_NODE`, or 1.
    pub fn rank_count(&self) -> Result<RankCount, FlagError> {
        if let Some(count) = self.nproc_per_node {
            return Ok(count);
        }
        if let Some(host) = self.hosts.this_host()?
            && let Ok(slots) = u32::try_from(host.slots.len())
            && let Some(slots) = NonZeroU32::new(slots)
        {
            return Ok(RankCount::Exactly(slots));
        }
        match env::var(PET_NPROC_PER_NODE) {
            Ok(value) => value.parse().map_err(|source| FlagError::RankCount {
                variable: PET_NPROC_PER_NODE,
                value,
                source,
            }),
            Err(_) => Ok(RankCount::Exactly(NonZeroU32::MIN)),
        }
    }

    /// The hosts on which this command is to be started, if it is not to start ranks itself.
    pub fn other_hosts(&self) -> Result<Option<HostsOfFile>, FlagError> {
        if self.hosts.this_host()?.is_some() {
            return Ok(None);
        }
        let arguments = self.hosts.launcher_args.as_deref().unwrap_or_default();
        let of_file = |hosts| HostsOfFile {
            hosts,
            ssh_arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        };
        Ok(self.hosts.hosts()?.map(of_file))
    }

    /// Whether something is asked for that even a single rank needs an agent for: other hosts, restarts,
    /// files for the output, or a place on this host.
    pub fn need_agent(&self) -> bool {
        let is_placed = self.hosts.gpus.is_some() || self.hosts.include.is_some();
        is_placed
            || self.numa_binding.is_some()
            || self.nnodes.is_some_and(|nnodes| nnodes > NonZeroU32::MIN)
            || self.max_restarts > 0
            || self.log_options() != LogOptions::default()
    }

    /// What the agent is to do: start `program` with `args` as the flags say, `count` ranks on this host.
    pub fn options(
        &self,
        program: impl Into<OsString>,
        args: Vec<OsString>,
        count: NonZeroU32,
    ) -> Result<AgentOptions, FlagError> {
        let mut graces = Graces::default();
        if let Some(seconds) = self.shutdown_timeout {
            graces.after_interrupt = Duration::from_secs(seconds.into());
            graces.after_terminate = graces.after_interrupt;
        }
        let mut variables = Vec::new();
        let host = self.hosts.this_host()?;
        if let Some(devices) = host.and_then(|host| host.visible_devices()) {
            variables.push((VISIBLE_DEVICES.into(), devices.into()));
        }
        Ok(AgentOptions {
            args,
            variables,
            numa_binding: self.numa_binding,
            nproc_per_node: count,
            nodes: self.nodes()?,
            graces,
            max_restarts: self.max_restarts,
            logs: self.log_options(),
            job_id: self.job_id.clone(),
            tls: self.tls,
            ..AgentOptions::new(program)
        })
    }

    fn nodes(&self) -> Result<Nodes, FlagError> {
        let nnodes = self.nnodes.unwrap_or(NonZeroU32::MIN);
        if nnodes == NonZeroU32::MIN {
            return match self.node_rank {
                Some(node_rank) if node_rank > 0 => Err(FlagError::NodeRankOfOne(node_rank)),
                _ => {
                    self.warn_of_a_master_that_is_not_asked();
                    Ok(Nodes::One { port: self.master_port().unwrap_or(0) })
                }
            };
        }
        if self.standalone {
            return Err(FlagError::StandaloneOfSeveral(nnodes));
        }
        Ok(Nodes::Several {
            nnodes,
            node_rank: match self.node_rank {
                Some(node_rank) => node_rank,
                None => node_rank_of_cluster()?,
            },
            master_addr: self.master_addr().ok_or(FlagError::NoMasterAddr)?.to_owned(),
            master_port: self
                .master_port()
                .filter(|&port| port > 0)
                .ok_or(FlagError::NoMasterPort)?,
        })
    }

    /// A job that runs with the same flags on several hosts, but without their number, is several jobs,
    /// and nobody would notice.
    fn warn_of_a_master_that_is_not_asked(&self) {
        if let Some(address) = self.master_addr()
            && !is_this_host(address)
        {
            tracing::warn!(
                "--master-addr {address} is not used: --nnodes is 1, so all ranks are on this host; give \
                 --nnodes if there are more"
            );
        }
    }

    fn master_addr(&self) -> Option<&str> {
        let endpoint = self.rdzv_endpoint.as_ref();
        endpoint.map(|endpoint| endpoint.host.as_str()).or(self.master_addr.as_deref())
    }

    fn master_port(&self) -> Option<u16> {
        let endpoint = self.rdzv_endpoint.as_ref();
        endpoint.map(|endpoint| endpoint.port).or(self.master_port)
    }

    fn log_options(&self) -> LogOptions {
        LogOptions {
            dir: self.log_dir.clone(),
            redirects: self.redirects.clone().unwrap_or_default(),
            tee: self.tee.clone().unwrap_or_default(),
        }
    }
}

/// Whether the address is this host's whatever host it is.
fn is_this_host(address: &str) -> bool {
    let ip = address.parse::<IpAddr>();
    address == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

fn node_rank_of_cluster() -> Result<u32, FlagError> {
    for variable in node_variables() {
        if let Ok(value) = env::var(variable) {
            return value.trim().parse().map_err(|_| FlagError::NotANumber { variable, value });
        }
    }
    Ok(0)
}

/// The number of hosts, which is fixed: of torchrun's form `MIN:MAX` only `N:N` is one.
fn hosts(text: &str) -> Result<NonZeroU32, &'static str> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.parse().map_err(|_| "expected a whole number of hosts");
    let (least, most): (u32, u32) = (number(least)?, number(most)?);
    if least != most {
        return Err(
            "a job keeps its hosts from start to end, so give one number; after the loss of a host start \
             the job again on those that are left, and it resumes from its last checkpoint",
        );
    }
    NonZeroU32::new(least).ok_or("a job needs at least 1 host")
}

fn endpoint(text: &str) -> Result<Endpoint, &'static str> {
    let form = "expected HOST:PORT, as in node0:29500";
    let (host, port) = text.rsplit_once(':').ok_or(form)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    let is_plain = !host.is_empty() && (bracketed.is_some() || !host.contains(':'));
    match port.parse().ok().filter(|_| is_plain) {
        Some(port) => Ok(Endpoint { host: host.to_owned(), port }),
        None => Err(form),
    }
}

#[cfg(test)]
mod tests;
