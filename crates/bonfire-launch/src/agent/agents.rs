//! What the agents of several hosts tell each other, through the store that host 0's agent serves:
//! that they belong together, that a rank has failed, and how each host's ranks ended.
//!
//! All agents come to the same verdict, because all judge the same reports. Nothing here touches a
//! process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonfire_collective::{
    Build, EnvSettings, FlightRecord, JobToken, LongWait, Store, StoreError, TcpStore, Tls,
};
use bonfire_plan::Rank;
use bonfire_sys::process::InterruptWatch;
use serde::{Deserialize, Serialize};

use super::Graces;
use super::supervisor::End;
use crate::error::LaunchError;
use crate::failure::{Exit, JobFailure, suspicion};

/// How long the agents of all hosts have to come.
pub(super) const JOIN_WAIT: Duration = Duration::from_secs(600);

/// How long the agents of other hosts may take to report, beyond what ending ranks takes.
const REPORT_WAIT: Duration = Duration::from_secs(15);

/// How long host 0 serves the store for those who still read the last reports.
const PART_WAIT: Duration = Duration::from_secs(5);

/// Longest wait in one call, after which an interrupt or the end of the ranks is noticed.
const SLICE: Duration = Duration::from_millis(200);

/// This host among the hosts of the job.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) node_rank: u32,
    pub(super) nnodes: u32,
    pub(super) nproc_per_node: u32,
    /// The store's host, as this host calls it.
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) token: JobToken,
    pub(super) tls: Tls,
}

impl Seat {
    fn connect(&self) -> Result<TcpStore, StoreError> {
        TcpStore::connect_with(&self.address, self.port, &self.token, self.tls, JOIN_WAIT)
    }
}

/// The agents of all hosts, seen from one of them.
#[derive(Debug)]
pub(super) struct Agents {
    seat: Seat,
    store: TcpStore,
}

/// What must be the same on all hosts.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    version: String,
    /// Of the launcher, unless any will do.
    build: Option<Build>,
    nnodes: u32,
    nproc_per_node: u32,
}

/// How the ranks of one host ended.
#[derive(Debug, Serialize, Deserialize)]
enum NodeEnd {
    Done,
    Failed(Report),
    Interrupted,
    /// The ranks could not be started or watched.
    Unable(String),
}

/// A [`JobFailure`] on its way to another host.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    rank: u32,
    process_id: u32,
    host: Option<String>,
    exit: Exit,
    last_lines: Vec<String>,
}

impl Agents {
    /// Takes this host's seat and waits for the other hosts' agents.
    pub(super) fn join(seat: Seat) -> Result<Self, LaunchError> {
        let started = Instant::now();
        let store = seat.connect()?;
        let node_rank = seat.node_rank;
        if store.add(&format!("node-claim/{node_rank}"), 1)? != 1 {
            return Err(LaunchError::NodeTaken { node_rank });
        }
        let card = Card {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: Build::to_compare(EnvSettings::from_env()?.builds.unwrap_or_default()),
            nnodes: seat.nnodes,
            nproc_per_node: seat.nproc_per_node,
        };
        store.set(&format!("node/{node_rank}"), &encode(&card))?;
        let mut wait = LongWait::begin();
        for node in 0..seat.nnodes {
            let theirs = loop {
                match store.get(&format!("node/{node}"), SLICE) {
                    Ok(bytes) => break bytes,
                    Err(StoreError::Timeout { .. }) if started.elapsed() >= JOIN_WAIT => {
                        let waited = started.elapsed();
                        return Err(LaunchError::NodeMissing { node, waited });
                    }
                    Err(StoreError::Timeout { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                wait.tell(|| {
                    let (address, port, nnodes) = (&seat.address, seat.port, seat.nnodes);
                    format!("node {node} of {nnodes} (meeting at {address}:{port})")
                });
            };
            card.agree(node_rank, node, &theirs)?;
        }
        Ok(Self { seat, store })
    }

    /// Calls `on_failure` once another host has reported a failure, or host 0 is lost.
    pub(super) fn watch(
        &self,
        attempt: u32,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Watch, LaunchError> {
        let seat = &self.seat;
        let store = seat.connect()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("bonfire-agents".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Acquire) {
                    match store.get(&failed_key(attempt), SLICE) {
                        Err(StoreError::Timeout { .. }) => {}
                        Ok(_) | Err(_) => return on_failure(),
                    }
                }
            })?;
        Ok(Watch {
            stop,
            thread: Some(thread),
        })
    }

    /// Tells the others how this host's ranks ended, waits for their ends, and judges all of them.
    pub(super) fn agree(&self, attempt: u32, end: End, graces: Graces) -> End {
        let bad = end.result.is_err();
        self.leave_flights(attempt, &end.flights);
        if let Err(error) = self.report(attempt, &NodeEnd::of(&end)) {
            // Host 0 is gone, so nothing more can be learned; what happened here is worth more.
            return match end.result {
                Ok(()) => End::last(self.lost(0, &error)),
                Err(_) => end,
            };
        }
        match self.gather(attempt, bad, graces) {
            Ok(ends) => {
                let flights = self.gather_flights(attempt);
                End {
                    flights,
                    ..self.judge(end, ends)
                }
            }
            Err(_) if bad => End {
                is_last: true,
                ..end
            },
            Err(error) => End::last(error),
        }
    }

    /// What this host's ranks left, for all agents; before the report of their end.
    fn leave_flights(&self, attempt: u32, flights: &[FlightRecord]) {
        if flights.is_empty() {
            return;
        }
        let key = flights_key(attempt, self.seat.node_rank);
        if let Err(error) = self.store.set(&key, &encode(&flights)) {
            // Too many ranks for one value, or host 0 is gone; the verdict goes without them.
            tracing::debug!("node {}: {error}", self.seat.node_rank);
        }
    }

    /// What the ranks of all hosts left, of which all have reported their end.
    fn gather_flights(&self, attempt: u32) -> Vec<FlightRecord> {
        let mut flights = Vec::new();
        for node in 0..self.seat.nnodes {
            let found = self.store.get(&flights_key(attempt, node), Duration::ZERO);
            if let Ok(bytes) = found {
                let records: Result<Vec<FlightRecord>, _> = decode(&bytes);
                flights.extend(records.unwrap_or_default());
            }
        }
        flights
    }

    /// Leaves; host 0 as the last, because it serves what the others still read.
    pub(super) fn part(&self) {
        let _ = self.store.add("parted", 1);
        let deadline = Instant::now() + PART_WAIT;
        let all = i64::from(self.seat.nnodes);
        while self.seat.node_rank == 0
            && Instant::now() < deadline
            && self.store.add("parted", 0).is_ok_and(|count| count < all)
        {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn report(&self, attempt: u32, end: &NodeEnd) -> Result<(), StoreError> {
        let order = self.store.add(&format!("node-ends/{attempt}"), 1)?;
        let key = end_key(attempt, self.seat.node_rank);
        self.store.set(&key, &encode(&(order, end)))?;
        if !matches!(end, NodeEnd::Done) {
            self.store.set(&failed_key(attempt), b"")?;
        }
        Ok(())
    }

    /// The ends of all hosts' ranks, in the order of their reports. Waits as long as ranks run
    /// anywhere, but not long after one has failed.
    fn gather(
        &self,
        attempt: u32,
        mut failed: bool,
        graces: Graces,
    ) -> Result<Vec<(u32, NodeEnd)>, LaunchError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let noticed = Arc::clone(&interrupted);
        let _watch = InterruptWatch::start(move |_| noticed.store(true, Ordering::Release))?;
        let patience = graces.after_failure + graces.after_terminate + REPORT_WAIT;
        let mut deadline = failed.then(|| Instant::now() + patience);
        let mut ends: Vec<(i64, u32, NodeEnd)> = Vec::new();
        let mut node = 0;
        while node < self.seat.nnodes {
            match self.store.get(&end_key(attempt, node), SLICE) {
                Ok(bytes) => {
                    let (order, end) = decode(&bytes).map_err(|error| self.lost(node, &error))?;
                    ends.push((order, node, end));
                    node += 1;
                }
                Err(StoreError::Timeout { .. }) => {
                    failed = failed || self.store.get(&failed_key(attempt), Duration::ZERO).is_ok();
                    if failed {
                        deadline.get_or_insert(Instant::now() + patience);
                    }
                    if interrupted.load(Ordering::Acquire)
                        || deadline.is_some_and(|deadline| Instant::now() > deadline)
                    {
                        return Err(LaunchError::NodeLost { node });
                    }
                }
                Err(error) => return Err(self.lost(0, &error)),
            }
        }
        ends.sort_by_key(|(order, ..)| *order);
        Ok(ends.into_iter().map(|(_, node, end)| (node, end)).collect())
    }

    /// The verdict of all hosts: the most suspect failure anywhere, by the order of the reports where
    /// two are equally suspect.
    fn judge(&self, own: End, ends: Vec<(u32, NodeEnd)>) -> End {
        let is_last = own.is_last
            || ends
                .iter()
                .any(|(_, end)| matches!(end, NodeEnd::Interrupted | NodeEnd::Unable(_)));
        let mut worst: Option<Report> = None;
        let mut other = None;
        for (node, end) in ends {
            match end {
                NodeEnd::Done => {}
                NodeEnd::Failed(report) => {
                    let worse = worst
                        .as_ref()
                        .is_none_or(|worst| suspicion(report.exit) < suspicion(worst.exit));
                    if worse {
                        worst = Some(report);
                    }
                }
                NodeEnd::Interrupted => {
                    other.get_or_insert(LaunchError::NodeInterrupted { node });
                }
                NodeEnd::Unable(reason) => {
                    other.get_or_insert(LaunchError::NodeUnable { node, reason });
                }
            }
        }
        let own_is_special =
            matches!(&own.result, Err(error) if !matches!(error, LaunchError::Rank(_)));
        let result = match (worst, other) {
            _ if own_is_special => own.result,
            (Some(report), _) => Err(LaunchError::Rank(Box::new(report.into()))),
            (None, Some(other)) => Err(other),
            (None, None) => Ok(()),
        };
        End {
            result,
            is_last,
            flights: Vec::new(),
        }
    }

    fn lost(&self, node: u32, error: &dyn std::error::Error) -> LaunchError {
        tracing::debug!("node {}: {error}", self.seat.node_rank);
        LaunchError::NodeLost { node }
    }
}

/// A thread that waits for bad news from other hosts. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Its waits are short, and a store that is gone ends them at once.
            let _ = thread.join();
        }
    }
}

impl Card {
    fn agree(&self, node_rank: u32, other: u32, theirs: &[u8]) -> Result<(), LaunchError> {
        let disagree = |what, ours: &dyn ToString, theirs: String| LaunchError::NodesDisagree {
            node_rank,
            what,
            ours: ours.to_string(),
            other,
            theirs,
        };
        let Ok(theirs) = decode::<Self>(theirs) else {
            let unknown = "one that this version does not understand".to_owned();
            return Err(disagree("version", &self.version, unknown));
        };
        if self.version != theirs.version {
            return Err(disagree("version", &self.version, theirs.version));
        }
        if let Some((ours, theirs)) = Build::differ(self.build.as_ref(), theirs.build.as_ref()) {
            return Err(LaunchError::LaunchersDiffer {
                node_rank,
                ours,
                other,
                theirs,
            });
        }
        for (what, ours, theirs) in [
            ("--nnodes", self.nnodes, theirs.nnodes),
            (
                "--nproc-per-node",
                self.nproc_per_node,
                theirs.nproc_per_node,
            ),
        ] {
            if ours != theirs {
                return Err(disagree(what, &ours, theirs.to_string()));
            }
        }
        Ok(())
    }
}

impl NodeEnd {
    fn of(end: &End) -> Self {
        match &end.result {
            Ok(()) => Self::Done,
            Err(LaunchError::Rank(failure)) => Self::Failed(Report::of(failure)),
            Err(LaunchError::Interrupted { .. }) => Self::Interrupted,
            Err(error) => Self::Unable(error.to_string()),
        }
    }
}

impl Report {
    fn of(failure: &JobFailure) -> Self {
        Self {
            rank: failure.rank.get(),
            process_id: failure.process_id,
            host: failure.host.clone(),
            exit: failure.exit,
            last_lines: failure.last_lines.clone(),
        }
    }
}

impl From<Report> for JobFailure {
    fn from(report: Report) -> Self {
        Self {
            rank: Rank::new(report.rank),
            process_id: report.process_id,
            host: report.host,
            exit: report.exit,
            last_lines: report.last_lines,
        }
    }
}

fn end_key(attempt: u32, node: u32) -> String {
    format!("node-end/{attempt}/{node}")
}

fn flights_key(attempt: u32, node: u32) -> String {
    format!("node-flights/{attempt}/{node}")
}

fn failed_key(attempt: u32) -> String {
    format!("node-failed/{attempt}")
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what agents say is plain data")
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes)
}
