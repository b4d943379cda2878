//! What the agents of several hosts report to each other, through the store that host 0's agent
//! serves: that they belong together, that a rank has failed, and how each host's ranks ended.
//!
//! All agents come to the same verdict, because all judge the same reports. Nothing here touches a process.

use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{
    Build, EnvSettings, FlightRecord, JobToken, LongWait, Store, StoreError, TcpStore, Tls,
};
use bonfire_plan::Rank;
use bonfire_sys::process::stop_this_process;
use serde::{Deserialize, Serialize};

use super::Graces;
use super::pulse::{self, Pulse, Watch};
use super::signals::{Signals, Wish};
use super::supervisor::End;
use crate::error::LaunchError;
use crate::failure::{JobFailure, PEER_FAILED, suspicion};
use crate::flights::late;

/// How long the agents of all hosts have to come.
pub(super) const JOIN_WAIT: Duration = Duration::from_secs(600);
/// How long the agents of other hosts may take to report, beyond what ending ranks takes.
const REPORT_WAIT: Duration = Duration::from_secs(15);
/// How long host 0 serves the store for those who still read the last reports.
const PART_WAIT: Duration = Duration::from_secs(5);
/// Longest wait in one call, after which an interrupt or the end of the ranks is noticed.
pub(super) const SLICE: Duration = Duration::from_millis(200);

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

pub(super) struct Agents {
    seat: Seat,
    store: TcpStore,
    pulse: Pulse,
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

#[derive(Debug, Serialize, Deserialize)]
enum NodeEnd {
    Done,
    Failed(Box<JobFailure>),
    Interrupted,
    /// The ranks could not be started or watched.
    Unable(String),
}

#[derive(Debug)]
struct ReportedEnd {
    node: u32,
    is_last: bool,
    end: NodeEnd,
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
        pulse::show(&store, node_rank)?;
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
                wait.log(|| {
                    let (address, port, nnodes) = (&seat.address, seat.port, seat.nnodes);
                    format!("node {node} of {nnodes} (meeting at {address}:{port})")
                });
            };
            card.agree(node_rank, node, &theirs)?;
        }
        // A connection of its own, made now: later host 0 may be gone, and a new one be waited for.
        let pulse = Pulse::start(seat.connect()?, node_rank, seat.nnodes)?;
        Ok(Self { seat, store, pulse })
    }

    /// Calls `on_failure` once another host has reported a failure, or one is lost.
    pub(super) fn watch(&self, attempt: u32, on_failure: impl FnOnce() + Send + 'static) -> Watch {
        self.pulse.watch(attempt, on_failure)
    }

    /// Reports to the others how this host's ranks ended, waits for their ends, and judges all of them.
    pub(super) fn agree(&self, attempt: u32, end: End, graces: Graces, signals: &Signals) -> End {
        let bad = end.result.is_err();
        self.leave_flights(attempt, &end.flights);
        if let Err(error) = self.report(attempt, &end) {
            // Host 0 is gone, so nothing more can be learned, and nothing be started again.
            return self.without(end, self.lost(0, &error));
        }
        match self.gather(attempt, bad, graces, signals) {
            Ok(ends) => {
                let flights = self.gather_flights(attempt);
                End { flights, ..self.judge(end, ends) }
            }
            Err(error) => self.without(end, error),
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
        let silent = (1..self.seat.nnodes).filter(|&node| pulse::is_silent(&self.store, node));
        let all = i64::from(self.seat.nnodes) - silent.count() as i64;
        while self.seat.node_rank == 0
            && Instant::now() < deadline
            && self.store.add("parted", 0).is_ok_and(|count| count < all)
        {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn report(&self, attempt: u32, end: &End) -> Result<(), StoreError> {
        let order = self.store.add(&format!("node-ends/{attempt}"), 1)?;
        let key = end_key(attempt, self.seat.node_rank);
        let report = (order, end.is_last, NodeEnd::of(end));
        self.store.set(&key, &encode(&report))?;
        if end.result.is_err() {
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
        signals: &Signals,
    ) -> Result<Vec<ReportedEnd>, LaunchError> {
        let (sender, wishes) = sync_channel(1);
        let _listening = signals.listen(move |wish| {
            // One that is not read yet is reason enough.
            let _ = sender.try_send(wish);
        });
        let timeout = graces.after_failure + graces.after_terminate + REPORT_WAIT;
        let mut deadline = failed.then(|| Instant::now() + timeout);
        let mut ends = Vec::new();
        let mut node = 0;
        while node < self.seat.nnodes {
            match wishes.try_recv() {
                Ok(Wish::End(by)) => return Err(LaunchError::Interrupted { by }),
                Ok(Wish::Stop) => stop_this_process()?,
                Err(_) => {}
            }
            match self.store.get(&end_key(attempt, node), SLICE) {
                Ok(bytes) => {
                    let (order, is_last, end): (i64, bool, NodeEnd) =
                        decode(&bytes).map_err(|error| self.lost(node, &error))?;
                    ends.push((order, ReportedEnd { node, is_last, end }));
                    node += 1;
                }
                Err(StoreError::Timeout { .. }) => {
                    failed = failed || self.store.get(&failed_key(attempt), Duration::ZERO).is_ok();
                    if failed {
                        deadline.get_or_insert(Instant::now() + timeout);
                    }
                    if deadline.is_some_and(|deadline| Instant::now() > deadline)
                        || pulse::is_silent(&self.store, node)
                    {
                        return Err(LaunchError::NodeLost { node });
                    }
                }
                Err(error) => return Err(self.lost(0, &error)),
            }
        }
        ends.sort_by_key(|(order, ..)| *order);
        Ok(ends.into_iter().map(|(_, end)| end).collect())
    }

    /// The verdict of all hosts: the most suspect failure anywhere, by the order of the reports where
    /// two are equally suspect.
    fn judge(&self, own: End, ends: Vec<ReportedEnd>) -> End {
        let is_last = own.is_last || ends.iter().any(|end| end.is_last);
        let mut worst: Option<Box<JobFailure>> = None;
        let mut other = None;
        for ReportedEnd { node, end, .. } in ends {
            match end {
                NodeEnd::Done => {}
                NodeEnd::Failed(failure) => {
                    let worse = worst
                        .as_ref()
                        .is_none_or(|worst| suspicion(failure.exit) < suspicion(worst.exit));
                    if worse {
                        worst = Some(failure);
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
            (Some(failure), _) => Err(LaunchError::Rank(failure)),
            (None, Some(other)) => Err(other),
            (None, None) => Ok(()),
        };
        End { result, is_last, flights: Vec::new() }
    }

    /// The last end of this host's ranks, where those of others will not be known for a reason. A rank that failed by
    /// itself says more than the reason; one that blames another, or waited for the lost host, says less.
    fn without(&self, own: End, reason: LaunchError) -> End {
        let is_of_lost = |rank: Rank| match reason {
            LaunchError::NodeLost { node } => rank.get() / self.seat.nproc_per_node == node,
            _ => false,
        };
        let result = match own.result {
            Ok(()) => Err(reason),
            Err(LaunchError::Rank(failure))
                if failure.exit == PEER_FAILED
                    || late(&own.flights).into_iter().any(is_of_lost) =>
            {
                Err(reason)
            }
            other => other,
        };
        End { result, is_last: true, flights: own.flights }
    }

    fn lost(&self, node: u32, error: &dyn std::error::Error) -> LaunchError {
        tracing::debug!("node {}: {error}", self.seat.node_rank);
        LaunchError::NodeLost { node }
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
            return Err(LaunchError::LaunchersDiffer { node_rank, ours, other, theirs });
        }
        for (what, ours, theirs) in [
            ("--nnodes", self.nnodes, theirs.nnodes),
            ("--nproc-per-node", self.nproc_per_node, theirs.nproc_per_node),
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
            Err(LaunchError::Rank(failure)) => Self::Failed(failure.clone()),
            Err(LaunchError::Interrupted { .. }) => Self::Interrupted,
            Err(error) => Self::Unable(error.to_string()),
        }
    }
}

pub(super) fn end_key(attempt: u32, node: u32) -> String {
    format!("node-end/{attempt}/{node}")
}

fn flights_key(attempt: u32, node: u32) -> String {
    format!("node-flights/{attempt}/{node}")
}

pub(super) fn failed_key(attempt: u32) -> String {
    format!("node-failed/{attempt}")
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what agents say is plain data")
}

pub(super) fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes)
}
