//! The agent: starts the ranks of this host as processes, and ends all of them when one fails.
//!
//! It serves the store through which the ranks meet, passes each rank its place in the environment,
//! prints their output line by line, and at the end says which rank failed first and why. On a terminal
//! it lets rank 0 draw, and puts the terminal back in order afterwards, however that rank ended. It never
//! touches the data of the job and never leaves a process behind.

mod agents;
mod command;
mod ending;
mod meeting;
mod numa;
mod pulse;
mod signals;
mod supervisor;

use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use bonfire_collective::Tls;
use bonfire_sys::process::raise_open_files;
use tracing::{info, warn};

use self::meeting::Meeting;
pub use self::numa::NumaBinding;
pub(crate) use self::signals::Signals;
#[cfg(feature = "clap")]
pub(crate) use self::signals::Wish;
use self::supervisor::{End, Setup, Supervisor};

use crate::error::LaunchError;
use crate::flights::Flights;
use crate::output::{LogOptions, Logs};

/// What to start on this host, and how.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The program of every rank: a path, or a name to look up in `PATH`.
    pub program: OsString,
    /// The arguments of the program.
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
    /// How often all ranks of the job may be started again after one failed. The program then
    /// continues from its last checkpoint; `TORCHELASTIC_RESTART_COUNT` says which start this is.
    pub max_restarts: u32,
    /// Which output goes to files.
    pub logs: LogOptions,
    /// The name of the job, part of every handshake; the same on every host. Without one, a job on
    /// one host gets a random name, and one on several hosts none.
    pub job_id: Option<String>,
    /// Which connections of the job are encrypted; the same on every host. `None` leaves it to
    /// `BONFIRE_TLS`, and without that to the program, whose ranks then refuse a store that this agent
    /// serves to other hosts without TLS.
    pub tls: Option<Tls>,
    /// On which cores ranks run; nothing leaves it to the system.
    pub numa_binding: Option<NumaBinding>,
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
            logs: LogOptions::default(),
            job_id: None,
            tls: None,
            numa_binding: None,
        }
    }

    /// Runs the ranks of this host to the end of the job, on the calling thread, and starts all of
    /// them again after a failure as often as `max_restarts` allows.
    ///
    /// While it runs, SIGINT, SIGTERM, SIGHUP and SIGTSTP are the agent's: it ends and stops the ranks with
    /// itself. One that arrives before there are ranks, or after, ends this process. When it returns,
    /// whatever it returns, no process that it started is left.
    pub fn run(&self) -> Result<(), LaunchError> {
        // The store has connections of all ranks, and the ranks inherit the limit.
        raise_open_files();
        let signals = Signals::watch()?;
        let mut meeting = Meeting::open(self)?;
        let logs = self.open_logs(&meeting)?;
        loop {
            let folder = logs.flight_folder(meeting.restart_count());
            let flights = Flights::begin(folder, &self.variables);
            let setup = Setup { options: self, logs: &logs, flights: &flights, signals: &signals };
            let end = match Supervisor::start(setup, &meeting) {
                Ok(supervisor) => supervisor.run(&flights),
                Err(error) => End::last(error),
            };
            let mut end = meeting.agree(end, self.graces, &signals);
            let said = match &end.result {
                Err(LaunchError::Rank(failure)) => Some(&failure.last_lines[..]),
                Err(LaunchError::NodeLost { .. }) => Some(&[][..]),
                _ => None,
            };
            if let Some(verdict) = said.map(|said| flights.verdict(&end.flights, said)) {
                // A closed stream cannot report it.
                let _ = io::stderr().write_all(verdict.as_bytes());
            }
            if let Err(LaunchError::Rank(failure)) = &mut end.result {
                Flights::correct(failure, &end.flights);
            }
            let restart_count = meeting.restart_count() + 1;
            match end.result {
                Err(LaunchError::Rank(failure))
                    if !end.is_last && restart_count <= self.max_restarts =>
                {
                    warn!(
                        "{failure}\nstarting all ranks again: restart {restart_count} of {}",
                        self.max_restarts
                    );
                    meeting.start_again()?;
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
            let kept = format!("the output of the ranks is kept in {}", folder.display());
            match self.logs.dir {
                Some(_) => info!("{kept}"),
                // The user cannot know the folder. A closed stream cannot report it.
                None => drop(writeln!(io::stderr(), "{kept}")),
            }
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
        /// How many hosts the job has.
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
    /// From a Ctrl-C, SIGTERM or SIGHUP to the agent, which it passes on as SIGTERM, to SIGKILL. A second
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
