//! The agent: starts the ranks of this host as processes, and ends all of them when one fails.
//!
//! It serves the store through which the ranks meet, passes each rank its place in the environment,
//! prints their output line by line, and at the end says which rank failed first and why. On a terminal
//! it lets rank 0 draw, and puts the terminal back in order afterwards, however that rank ended. It never
//! touches the data of the job and never leaves a process behind.

mod agents;
mod command;
mod ending;
mod failure;
#[cfg(feature = "clap")]
mod flags;
mod flights;
mod held;
mod leftovers;
mod lines;
mod logs;
mod meeting;
mod ranks;
mod relay;
mod screen;
mod supervisor;
mod terminal;
mod told;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_sys::process::Interrupt;
use thiserror::Error;
use tracing::{info, warn};

pub use failure::{Exit, JobFailure};
#[cfg(feature = "clap")]
pub use flags::{FlagError, LaunchFlags, own_arguments};
pub use logs::{LogOptions, StreamChoice, StreamChoiceError, Streams};
pub use ranks::{RankCount, RankCountError};

use self::flights::Flights;
use self::logs::Logs;
use self::meeting::Meeting;
use self::supervisor::{End, Setup, Supervisor};
use crate::environment::EnvError;
use crate::settings::SettingError;
use crate::store::StoreError;
use crate::tls::Tls;
use crate::token::TokenError;

/// The exit code of a worker that failed only because another rank did, so that the agent does not
/// take it for the culprit. It is `EX_TEMPFAIL` of `sysexits.h`.
pub const PEER_FAILED_EXIT_CODE: u8 = 75;

/// What to start on this host, and how.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The program of every rank: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// The ranks on each host.
    pub nproc_per_node: NonZeroU32,
    /// The hosts of the job.
    pub nodes: Nodes,
    /// Further environment variables for the ranks.
    pub variables: Vec<(OsString, OsString)>,
    /// How long the ranks may take to end.
    pub graces: Graces,
    /// Which lines of the ranks carry their rank.
    pub labels: OutputLabels,
    /// How often all ranks of the job may be started anew after one failed. The program then goes
    /// on from its last checkpoint; `TORCHELASTIC_RESTART_COUNT` tells it which start this is.
    pub max_restarts: u32,
    /// How many ranks of this host must be left for the job to go on without those that fail; for
    /// programs that [rebuild](crate::ProcessGroup::rebuild) their group. Without it one failure ends
    /// the job.
    pub min_nproc_per_node: Option<NonZeroU32>,
    /// Which output goes to files.
    pub logs: LogOptions,
    /// The name of the job, part of every handshake; the same on every host. Without one, a job on
    /// one host gets a random name, and one on several hosts none.
    pub job_id: Option<String>,
    /// Which connections of the job are encrypted; the same on every host. `None` leaves it to
    /// `BONFIRE_TLS`, and without that to the program, whose ranks then refuse a store that this agent
    /// serves to other hosts without TLS.
    pub tls: Option<Tls>,
}

impl AgentOptions {
    /// One rank of a program on this host; change the fields for more.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            nproc_per_node: NonZeroU32::MIN,
            nodes: Nodes::One { port: 0 },
            variables: Vec::new(),
            graces: Graces::default(),
            labels: OutputLabels::default(),
            max_restarts: 0,
            min_nproc_per_node: None,
            logs: LogOptions::default(),
            job_id: None,
            tls: None,
        }
    }

    /// Runs the ranks of this host to the end of the job, on the calling thread, and starts all of
    /// them anew after a failure as often as `max_restarts` allows.
    ///
    /// While it runs, SIGINT and SIGTERM are the agent's. When it returns, whatever it returns, no
    /// process that it started is left.
    pub fn run(&self) -> Result<(), LaunchError> {
        let mut meeting = Meeting::open(self)?;
        let logs = self.open_logs(&meeting)?;
        loop {
            let folder = logs.flight_folder(meeting.restart_count());
            let flights = Flights::begin(folder, &self.variables);
            let setup = Setup {
                options: self,
                logs: &logs,
                flights: &flights,
            };
            let end = match Supervisor::start(setup, &meeting) {
                Ok(supervisor) => supervisor.run(&flights),
                Err(error) => End::last(error),
            };
            let end = meeting.agree(end, self.graces);
            if let Err(LaunchError::Rank(failure)) = &end.result {
                let verdict = flights.verdict(end.flights, &failure.last_lines);
                // A closed stream has nobody to tell.
                let _ = io::stderr().write_all(verdict.as_bytes());
            }
            let restart_count = meeting.restart_count() + 1;
            match end.result {
                Err(LaunchError::Rank(failure))
                    if !end.is_last && restart_count <= self.max_restarts =>
                {
                    warn!(
                        "{failure}\nstarting all ranks anew: restart {restart_count} of {}",
                        self.max_restarts
                    );
                    meeting.start_anew()?;
                }
                result => {
                    meeting.part();
                    return result;
                }
            }
        }
    }

    fn open_logs(&self, meeting: &Meeting) -> Result<Logs, LaunchError> {
        let logs = Logs::open(&self.logs, meeting.job_name()).map_err(LaunchError::Logs)?;
        if let Some(folder) = logs.folder() {
            info!("the output of the ranks is kept in {}", folder.display());
        }
        Ok(logs)
    }
}

/// The hosts of a job, each with one agent and equally many ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// This host alone; nothing listens on an outside interface.
    One {
        /// The port of the store, 0 for any free one.
        port: u16,
    },
    /// Several hosts. The agents need the same job token, from `BONFIRE_JOB_TOKEN`; without it any
    /// process that reaches the store can join the job.
    Several {
        /// The number of hosts.
        nnodes: NonZeroU32,
        /// This host's number, from 0; host 0 serves the store.
        node_rank: u32,
        /// A name or address of host 0, as seen by all hosts.
        master_addr: String,
        /// The port of the store on host 0.
        master_port: u16,
    },
}

/// Which lines that ranks print are labelled with their rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputLabels {
    /// Both streams, unless there is only one rank.
    #[default]
    All,
    /// The error stream only: for a program of which one rank prints, and that to be read by others.
    Errors,
}

/// How long ranks may take to end by themselves before they are made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graces {
    /// From the first failure of a rank to SIGTERM for the others, which meanwhile learn of the
    /// failure and can say where they were.
    pub after_failure: Duration,
    /// From that SIGTERM to SIGKILL.
    pub after_terminate: Duration,
    /// From a Ctrl-C or SIGTERM to the agent, which it passes on as SIGTERM, to SIGKILL. A second
    /// Ctrl-C cuts it short.
    pub after_interrupt: Duration,
}

impl Default for Graces {
    /// All processes are gone well within 10 s of a failure; an interrupted job has 10 s to save.
    fn default() -> Self {
        Self {
            after_failure: Duration::from_secs(3),
            after_terminate: Duration::from_secs(3),
            after_interrupt: Duration::from_secs(10),
        }
    }
}

/// The job did not run to a good end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A rank failed; the others were ended.
    #[error(transparent)]
    Rank(Box<JobFailure>),
    /// The user or the system asked the agent to end; all ranks were ended.
    #[error("interrupted by {}; all ranks have ended", failure::signal_name(.by.number().into()))]
    Interrupted {
        /// The signal.
        by: Interrupt,
    },
    /// The program does not exist.
    #[error("there is no program {}: check the spelling, or give its path", .program.display())]
    NoProgram {
        /// The program asked for.
        program: PathBuf,
    },
    /// The program exists but cannot be started.
    #[error("cannot start {} as rank {rank}", .program.display())]
    Spawn {
        /// The program asked for.
        program: PathBuf,
        /// The rank that it was to be.
        rank: u32,
        /// What the operating system said.
        source: io::Error,
    },
    /// This host's number is not one of the job's.
    #[error("the node rank is {node_rank}, but there are {nnodes} nodes: node ranks count from 0")]
    NodeRankOutOfRange {
        /// This host's number.
        node_rank: u32,
        /// The number of hosts.
        nnodes: NonZeroU32,
    },
    /// More ranks than a world can have.
    #[error("{nnodes} nodes of {nproc_per_node} ranks are more ranks than a job can have")]
    WorldTooLarge {
        /// The number of hosts.
        nnodes: NonZeroU32,
        /// The ranks on each.
        nproc_per_node: NonZeroU32,
    },
    /// The ranks of several hosts must agree on a port beforehand.
    #[error("a job on several nodes needs a port: give the same --master-port on every node")]
    NoPort,
    /// The name of host 0 means nothing to this host.
    #[error(
        "cannot resolve the master address {address}: check the spelling of --master-addr, or give \
         a numeric address"
    )]
    Resolve {
        /// The name.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Host 0 does not have the address that it is to serve.
    #[error(
        "this is node 0, but {address} is no address of this host: give --master-addr an address \
         of node 0 that the other nodes can reach"
    )]
    NotMyAddress {
        /// The address.
        address: String,
    },
    /// Host 0 takes its own name for a loopback address.
    #[error(
        "this is node 0, and takes {address} for its loopback address {ip} (see /etc/hosts), where \
         no other node can reach it: give --master-addr an address of node 0"
    )]
    LoopbackMaster {
        /// The name.
        address: String,
        /// What it resolves to.
        ip: IpAddr,
    },
    /// The store cannot be served.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// A variable that the agent reads is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Another agent says that it is this host of the job.
    #[error(
        "there is another node {node_rank} in this job: give every host its own --node-rank, and \
         every job its own --master-port"
    )]
    NodeTaken {
        /// This host's number.
        node_rank: u32,
    },
    /// An agent of another host never came.
    #[error(
        "node {node} did not come within {} s: start the same command on every host, each with \
         its own --node-rank", .waited.as_secs()
    )]
    NodeMissing {
        /// The host's number.
        node: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Two agents were started differently.
    #[error("node {node_rank} has {what} {ours}, but node {other} has {theirs}: make them equal")]
    NodesDisagree {
        /// This host's number.
        node_rank: u32,
        /// What differs.
        what: &'static str,
        /// This host's value.
        ours: String,
        /// The other host's number.
        other: u32,
        /// The other host's value.
        theirs: String,
    },
    /// Two agents are different builds.
    #[error(
        "the launcher of node {node_rank} is {ours}, but that of node {other} is {theirs}: start copies of one \
         build everywhere, or set BONFIRE_BUILDS=any if these are to work together"
    )]
    LaunchersDiffer {
        /// This host's number.
        node_rank: u32,
        /// The file of its launcher, and which build that is.
        ours: String,
        /// The other host's number.
        other: u32,
        /// The file of the other's launcher, and which build that is.
        theirs: String,
    },
    /// The agent of another host stopped answering.
    #[error("node {node} is lost: its launcher no longer answers")]
    NodeLost {
        /// The host's number.
        node: u32,
    },
    /// The agent of another host could not start its ranks.
    #[error("node {node} cannot go on: {reason}")]
    NodeUnable {
        /// The host's number.
        node: u32,
        /// What its agent said.
        reason: String,
    },
    /// The agent of another host was asked to end.
    #[error("node {node} was interrupted; all ranks have ended")]
    NodeInterrupted {
        /// The host's number.
        node: u32,
    },
    /// No folder or file for the output of ranks.
    #[error("cannot keep the output of the ranks in files; see --log-dir")]
    Logs(#[source] io::Error),
    /// No job token could be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The operating system refused what the agent needs, such as a thread.
    #[error("the launcher cannot go on")]
    System(#[from] io::Error),
}

impl LaunchError {
    /// The exit code for a process whose only task was this job: that of the failed rank, as a shell
    /// would report it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rank(failure) => failure.exit.code(),
            Self::Interrupted { by } => 128 + by.number(),
            _ => 1,
        }
    }
}
