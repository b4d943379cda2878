//! The launcher's flags, in torchrun's spelling, for every program with a command line.

use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_collective::Tls;
use clap::{ArgAction, Args, Command};
use thiserror::Error;

use crate::agent::{AgentOptions, Graces, Nodes};
use crate::output::{LogOptions, StreamChoice};
use crate::ranks::{RankCount, RankCountError};

/// The variable with which PyTorchJob, as torchrun, gives the number of ranks.
const PET_NPROC_PER_NODE: &str = "PET_NPROC_PER_NODE";

/// Variables that number the hosts of a job that a cluster started once per host.
const NODE_NUMBERS: [&str; 2] = ["SLURM_NODEID", "JOB_COMPLETION_INDEX"];

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
        value_parser = at_least_one
    )]
    pub nnodes: Option<NonZeroU32>,

    /// This host's number, from 0; host 0 is where the ranks meet. By default what Slurm
    /// (SLURM_NODEID) or an indexed job of Kubernetes (JOB_COMPLETION_INDEX) says, else 0
    #[arg(long, alias = "node_rank", value_name = "N", env = "PET_NODE_RANK")]
    pub node_rank: Option<u32>,

    /// Name or address of host 0 as the other hosts see it; needed with several hosts
    #[arg(
        long,
        alias = "master_addr",
        value_name = "HOST",
        env = "PET_MASTER_ADDR"
    )]
    pub master_addr: Option<String>,

    /// TCP port on host 0 where the ranks meet; needed with several hosts, and chosen by the system
    /// on one
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        env = "PET_MASTER_PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub master_port: Option<u16>,

    /// All ranks are on this host, and no port is needed; so it is anyway with one host
    #[arg(long, action = ArgAction::SetTrue)]
    pub standalone: bool,

    /// Start all ranks anew up to so many times when one fails; the program goes on from its last
    /// checkpoint
    #[arg(
        long,
        alias = "max_restarts",
        value_name = "N",
        env = "PET_MAX_RESTARTS",
        default_value = "0"
    )]
    pub max_restarts: u32,

    /// Go on without ranks that fail, as long as so many are left on this host, for programs whose
    /// ranks do not need each other; without it one failure ends the job
    #[arg(long, alias = "min_nproc_per_node", value_name = "N")]
    pub min_nproc_per_node: Option<NonZeroU32>,

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

    /// The name of the job, the same on every host: jobs with different names never meet
    #[arg(
        long,
        alias = "rdzv_id",
        visible_alias = "rdzv-id",
        value_name = "NAME"
    )]
    pub job_id: Option<String>,

    /// Which connections are encrypted: off, hosts (those between hosts) or all (every TCP
    /// connection); the same on every host. By default what BONFIRE_TLS says, else off
    #[arg(long, value_name = "off|hosts|all")]
    pub tls: Option<Tls>,

    /// Seconds that ranks have to end after SIGTERM, before SIGKILL; by default 10 after Ctrl-C and 3
    /// after a failure
    #[arg(long, alias = "shutdown_timeout", value_name = "SECONDS")]
    pub shutdown_timeout: Option<u32>,
}

/// The flags contradict each other or lack something.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlagError {
    /// A host's number without several hosts.
    #[error("--node-rank is {0}, but --nnodes is 1")]
    NodeRankOfOne(u32),
    /// Several hosts, and only one.
    #[error("--standalone is for one host, but --nnodes is {0}")]
    StandaloneOfSeveral(NonZeroU32),
    /// Nobody knows where host 0 is.
    #[error("several nodes need --master-addr: the name or address of node 0")]
    NoMasterAddr,
    /// Nobody knows where on host 0 the ranks meet.
    #[error("several nodes need --master-port: a free port on node 0")]
    NoMasterPort,
    /// A variable is no number.
    #[error("{variable} must be a whole number, not \"{value}\"")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// A variable is no number of ranks, or this host does not have so many.
    #[error("the number of ranks cannot be had: {0}")]
    RankCount(#[from] RankCountError),
}

impl LaunchFlags {
    /// The number of ranks that was asked for: by the flag, by `BONFIRE_NPROC`, by
    /// `PET_NPROC_PER_NODE`, or 1.
    pub fn rank_count(&self) -> Result<RankCount, FlagError> {
        if let Some(count) = self.nproc_per_node {
            return Ok(count);
        }
        match env::var(PET_NPROC_PER_NODE) {
            Ok(text) => Ok(text.parse()?),
            Err(_) => Ok(RankCount::Exactly(NonZeroU32::MIN)),
        }
    }

    /// Whether something is asked for that even a single rank needs an agent for: other hosts, restarts
    /// or files for the output.
    pub fn need_agent(&self) -> bool {
        self.nnodes.is_some_and(|nnodes| nnodes > NonZeroU32::MIN)
            || self.max_restarts > 0
            || self.min_nproc_per_node.is_some()
            || self.log_options() != LogOptions::default()
    }

    /// What the agent is to do: start `program` with `args` as the flags say, `count` ranks on this
    /// host.
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
        Ok(AgentOptions {
            args,
            nproc_per_node: count,
            nodes: self.nodes()?,
            graces,
            max_restarts: self.max_restarts,
            min_nproc_per_node: self.min_nproc_per_node,
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
                    Ok(Nodes::One {
                        port: self.master_port.unwrap_or(0),
                    })
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
            master_addr: self.master_addr.clone().ok_or(FlagError::NoMasterAddr)?,
            master_port: self.master_port.ok_or(FlagError::NoMasterPort)?,
        })
    }

    /// A job that runs with the same flags on several hosts, but without their number, is several jobs,
    /// and nobody would notice.
    fn warn_of_a_master_that_is_not_asked(&self) {
        if let Some(address) = self.master_addr.as_deref()
            && !is_this_host(address)
        {
            tracing::warn!(
                "--master-addr {address} is not used: --nnodes is 1, so all ranks are on this host; give \
                 --nnodes if there are more"
            );
        }
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
    for variable in NODE_NUMBERS {
        if let Ok(value) = env::var(variable) {
            return match value.trim().parse() {
                Ok(number) => Ok(number),
                Err(_) => Err(FlagError::NotANumber { variable, value }),
            };
        }
    }
    Ok(0)
}

fn at_least_one(text: &str) -> Result<NonZeroU32, &'static str> {
    let count: u32 = text
        .parse()
        .map_err(|_| "expected a whole number: a job has as many hosts from start to end")?;
    NonZeroU32::new(count).ok_or("a job needs at least 1 host")
}

/// The long flags of `A` and their values, from among all arguments of a program, whose others are
/// its own business. What follows `--` is not looked at.
pub fn own_arguments<A: Args>(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = A::augment_args(Command::new(""));
    let takes_value = |name: &str| {
        let found = command.get_arguments().find(|argument| {
            argument.get_long() == Some(name)
                || argument
                    .get_all_aliases()
                    .is_some_and(|aliases| aliases.contains(&name))
        });
        found.map(|argument| argument.get_action().takes_values())
    };
    let mut own = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        if text == "--" {
            break;
        }
        let Some(flag) = text.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let Some(takes_value) = takes_value(name) else {
            continue;
        };
        own.push(argument);
        if takes_value && value.is_none() {
            own.extend(arguments.next());
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        launch: LaunchFlags,
    }

    fn flags(line: &str) -> LaunchFlags {
        let arguments = std::iter::once("program").chain(line.split_whitespace());
        Program::try_parse_from(arguments).unwrap().launch
    }

    fn options(line: &str) -> Result<AgentOptions, FlagError> {
        flags(line).options("train", Vec::new(), NonZeroU32::MIN)
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let lines = [
            "--nnodes=2 --node-rank=1 --master-addr=a --master-port=9 --max-restarts=3 \
             --log-dir=logs --redirects=1 --tee=0:2 --rdzv-id=x --nproc-per-node=4",
            "--nnodes 2 --node_rank 1 --master_addr a --master_port 9 --max_restarts 3 \
             --log_dir logs --redirects 1 --tee 0:2 --rdzv_id x --nproc_per_node 4",
        ];
        for line in lines {
            let seen = options(line).unwrap();
            let Nodes::Several {
                nnodes,
                node_rank,
                master_addr,
                master_port,
            } = seen.nodes
            else {
                panic!("{:?}", seen.nodes);
            };
            assert_eq!((nnodes.get(), node_rank, master_port), (2, 1, 9));
            assert_eq!((master_addr.as_str(), seen.max_restarts), ("a", 3));
            assert_eq!(seen.job_id.as_deref(), Some("x"));
            assert_eq!(seen.logs.redirects, "1".parse().unwrap());
            assert_eq!(seen.logs.tee, "0:2".parse().unwrap());
            let count = flags(line).rank_count().unwrap();
            assert_eq!(count.to_string(), "4");
        }
    }

    #[test]
    fn every_letter_is_the_programs_own() {
        let command = LaunchFlags::augment_args(Command::new(""));
        let letters: Vec<char> = command
            .get_arguments()
            .filter_map(clap::Arg::get_short)
            .collect();
        assert!(letters.is_empty(), "{letters:?}");
    }

    #[test]
    fn contradictions_are_refused() {
        let cases = [
            ("--node-rank 1", "--node-rank is 1, but --nnodes is 1"),
            ("--nnodes 2 --standalone", "--standalone is for one host"),
            ("--nnodes 2 --master-port 9", "need --master-addr"),
            ("--nnodes 2 --master-addr a", "need --master-port"),
        ];
        for (line, expected) in cases {
            let message = options(line).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn what_is_encrypted_can_be_said() {
        assert_eq!(options("--nproc 2").unwrap().tls, None);
        assert_eq!(options("--tls hosts").unwrap().tls, Some(Tls::Hosts));
        let line = ["program", "--tls", "on"];
        let error = Program::try_parse_from(line).unwrap_err().to_string();
        assert!(error.contains("off, hosts or all"), "{error}");
    }

    #[test]
    fn one_rank_without_wishes_needs_no_agent() {
        assert!(!flags("--standalone").need_agent());
        for line in ["--nnodes 2", "--max-restarts 1", "--tee 3"] {
            assert!(flags(line).need_agent(), "{line}");
        }
    }

    #[test]
    fn the_launchers_flags_are_found_among_others() {
        let line = "run --steps 7 --nproc 3 --standalone file --log_dir=x -v -- --nnodes 9";
        let own = own_arguments::<LaunchFlags>(line.split(' ').map(OsString::from));
        assert_eq!(own, ["--nproc", "3", "--standalone", "--log_dir=x"]);
    }
}
