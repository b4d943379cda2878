//! What the ranks were doing when their group failed, and what follows from it.
//!
//! Each rank gives a report of itself from its flight recorder: threads of one process look into
//! each other's, processes send theirs over the control channel when they learn of the failure. The
//! thread that does so runs while the program hangs, so the only ranks without a report are those
//! whose process is stopped or dead or cannot be reached.
//!
//! A group that runs can be asked for the same: each process then sends the asker its ranks' records.

mod running;
mod status;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bonfire_plan::{Operation, Rank, WorldSize};
use serde::{Deserialize, Serialize};

use crate::health::failure::{Mismatch, Timeout};
use crate::health::flight::{FlightRecord, RecordTarget, write_flight_record};
use crate::health::recorder::{FlightOperation, Progress, Recorder};
use crate::health::stragglers::StragglerReport;
use bonfire_connect::platform::sync::{Mutex, MutexGuard};

pub use running::GroupReport;

/// Culprits that are named one by one.
const CULPRITS_MAX: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankReport {
    pub(crate) rank: Rank,
    /// Its last operation of the group, if it has called any.
    pub(crate) last: Option<FlightOperation>,
    #[serde(default)]
    pub(crate) progress: Progress,
    /// Whom it waits for while it joins the group.
    #[serde(default)]
    pub(crate) awaited: Vec<Rank>,
}

pub(crate) fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

impl RankReport {
    /// Of a rank that joins the group and is not connected to these others yet; of one that has
    /// joined, if there are none.
    pub(crate) fn of_joining(rank: Rank, awaited: Vec<Rank>) -> Self {
        Self { rank, last: None, progress: Progress::default(), awaited }
    }

    fn is_of_joining(&self) -> bool {
        !self.awaited.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reports {
    recorders: Mutex<BTreeMap<Rank, RankRecorder>>,
    received: Mutex<BTreeMap<Rank, RankReport>>,
    /// The answers to the last question that this process asked.
    answers: Mutex<Answers>,
    asking: Mutex<()>,
    warned: Mutex<Option<Operation>>,
    /// Who keeps the others waiting, as rank 0 found out last.
    stragglers: Mutex<Option<StragglerReport>>,
    /// The same for every caller, and put together once.
    verdict: OnceLock<String>,
    /// So is what the programs of two ranks say that disagree.
    calls: OnceLock<[String; 2]>,
    /// Whether the flight records of this process are written.
    written: OnceLock<()>,
}

#[derive(Clone, Debug)]
pub(crate) struct RankRecorder {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) target: RecordTarget,
}

#[derive(Debug, Default)]
struct Answers {
    round: u64,
    records: BTreeMap<Rank, FlightRecord>,
}

impl Reports {
    /// A rank of this process, and where it writes down what it does.
    pub(crate) fn add(&self, rank: Rank, recorder: RankRecorder) {
        self.recorders.lock().insert(rank, recorder);
    }

    /// Leaves the flight records of this process behind, once.
    pub(crate) fn write_flight_records(&self, failure: &str) {
        self.written.get_or_init(|| {
            for RankRecorder { recorder, target } in self.recorders() {
                let Some(folder) = &target.folder else {
                    continue;
                };
                let failure = Some(failure.to_owned());
                let record = target.record(failure, &recorder, usize::MAX);
                let rank = target.rank;
                match write_flight_record(folder, &record) {
                    Ok(path) => tracing::info!(
                        target: "bonfire",
                        "rank {rank}: flight record in {}", path.display()
                    ),
                    Err(error) => tracing::warn!(
                        target: "bonfire",
                        "rank {rank}: no flight record in {}: {error}", folder.display()
                    ),
                }
            }
        });
    }

    pub(crate) fn recorders(&self) -> Vec<RankRecorder> {
        self.recorders.lock().values().cloned().collect()
    }

    pub(crate) fn own_records(
        &self,
        failure: Option<&str>,
        operations_max: usize,
    ) -> Vec<FlightRecord> {
        let recorders = self.recorders();
        let record = |RankRecorder { recorder, target }: &RankRecorder| {
            target.record(failure.map(str::to_owned), recorder, operations_max)
        };
        recorders.iter().map(record).collect()
    }

    pub(crate) fn keep_stragglers(&self, report: StragglerReport) {
        *self.stragglers.lock() = Some(report);
    }

    pub(crate) fn stragglers(&self) -> Option<StragglerReport> {
        self.stragglers.lock().clone()
    }

    /// Waits until no other thread of this process asks the other processes.
    pub(crate) fn asking(&self) -> MutexGuard<'_, ()> {
        self.asking.lock()
    }

    pub(crate) fn has_recorder(&self, rank: Rank) -> bool {
        self.recorders.lock().contains_key(&rank)
    }

    pub(crate) fn warns_of(&self, operation: &Operation) -> bool {
        self.warned.lock().replace(operation.clone()).as_ref() != Some(operation)
    }

    /// This process is about to ask the others; the number of the question.
    pub(crate) fn begin_round(&self) -> u64 {
        let mut answers = self.answers.lock();
        answers.round += 1;
        answers.records.clear();
        answers.round
    }

    /// Another process answered. Answers to earlier questions are too late.
    pub(crate) fn answer(&self, round: u64, record: FlightRecord) {
        let mut answers = self.answers.lock();
        if answers.round == round {
            answers.records.insert(record.rank, record);
        }
    }

    pub(crate) fn answers(&self) -> BTreeMap<Rank, FlightRecord> {
        self.answers.lock().records.clone()
    }

    /// What another process said of one of its ranks. The first report counts: it is the closest to
    /// the failure. What a rank says while it joins is replaced by whatever it says next.
    pub(crate) fn receive(&self, report: RankReport) {
        let mut received = self.received.lock();
        let known = received.get(&report.rank);
        if known.is_none_or(RankReport::is_of_joining) {
            received.insert(report.rank, report);
        }
    }

    pub(crate) fn joined(&self, rank: Rank) {
        let mut received = self.received.lock();
        if received.get(&rank).is_some_and(RankReport::is_of_joining) {
            received.remove(&rank);
        }
    }

    pub(crate) fn own(&self) -> Vec<RankReport> {
        let report = |(rank, own): (&Rank, &RankRecorder)| RankReport {
            rank: *rank,
            last: own.recorder.records().next(),
            progress: own.recorder.progress(),
            awaited: Vec::new(),
        };
        self.recorders.lock().iter().map(report).collect()
    }

    /// Everybody's report, as far as it is known.
    pub(crate) fn all(&self) -> BTreeMap<Rank, RankReport> {
        let mut all = self.received.lock().clone();
        all.extend(self.own().into_iter().map(|report| (report.rank, report)));
        all
    }

    /// Adds what the programs of two ranks say that disagree. `wait` gives the reports of other processes time to
    /// come.
    pub(crate) fn name_calls(&self, mismatch: &mut Mismatch, wait: impl FnOnce()) {
        let calls = self.calls.get_or_init(|| {
            wait();
            let reports = self.all();
            let call = |rank, operation| call(reports.get(rank), operation);
            [
                call(&mismatch.rank, &mismatch.operation),
                call(&mismatch.other_rank, &mismatch.other_operation),
            ]
        });
        mismatch.calls = Some(calls.clone());
    }

    /// Why a rank waited in vain, in words. `wait` gives the reports of other processes time to come.
    pub(crate) fn verdict(
        &self,
        timeout: &Timeout,
        world_size: WorldSize,
        wait: impl FnOnce(),
    ) -> String {
        let verdict = self.verdict.get_or_init(|| {
            wait();
            verdict(timeout, world_size, &self.all())
        });
        verdict.clone()
    }
}

/// What a rank's program says of an operation within a call of it, as far as is known: what calls it, and of what.
fn call(report: Option<&RankReport>, operation: &Operation) -> String {
    let Some(report) = report.filter(|_| operation.step.is_some()) else {
        return String::new();
    };
    let phase = report.progress.phase.as_ref();
    let phase = phase.map_or("a step", |phase| &phase.name);
    let is_it = |last: &&FlightOperation| last.operation.seq == operation.seq;
    let last = report.last.as_ref().filter(is_it);
    match last.and_then(|last| last.name.as_deref()) {
        Some(name) => format!("{phase} ({name}), which is "),
        None => format!("{phase}, which is "),
    }
}

/// How far a rank is, compared with an operation.
#[derive(Debug)]
enum Standing<'a> {
    /// Nobody knows how far it is.
    Silent,
    /// It is still joining the group, and waits for these.
    Joining(&'a [Rank]),
    /// It has called nothing yet.
    Idle(&'a Progress),
    /// It has left this earlier operation and not entered the next.
    Outside(&'a FlightOperation, &'a Progress),
    Behind(&'a FlightOperation),
    There(&'a FlightOperation),
    /// It has been there, or is in an operation of which the order is not known.
    Past(&'a FlightOperation),
}

impl<'a> Standing<'a> {
    fn of(report: Option<&'a RankReport>, ours: &Operation) -> Self {
        let Some(report) = report else {
            return Self::Silent;
        };
        if report.is_of_joining() {
            return Self::Joining(&report.awaited);
        }
        let Some(last) = &report.last else {
            return Self::Idle(&report.progress);
        };
        let its = &last.operation;
        if its.seq == ours.seq && its.collective == ours.collective {
            return Self::There(last);
        }
        // Pairs of ranks count for themselves.
        let comparable =
            !its.collective.is_point_to_point() && !ours.collective.is_point_to_point();
        match last.ended_ago {
            Some(_) if !comparable || its.seq < ours.seq => Self::Outside(last, &report.progress),
            None if !comparable || its.seq < ours.seq => Self::Behind(last),
            _ => Self::Past(last),
        }
    }

    fn is_missing(&self) -> bool {
        !matches!(self, Self::There(_) | Self::Past(_))
    }
}

/// The ranks that the others wait for, as far as the reports show. For an operation of two ranks only
/// the one that was waited for matters.
fn verdict(
    timeout: &Timeout,
    world_size: WorldSize,
    reports: &BTreeMap<Rank, RankReport>,
) -> String {
    let ranks: Vec<Rank> = if timeout.operation.collective.is_point_to_point() {
        vec![timeout.waited_for]
    } else {
        world_size.ranks().filter(|rank| *rank != timeout.rank).collect()
    };
    let standing = |rank: Rank| (rank, Standing::of(reports.get(&rank), &timeout.operation));
    let mut missing: Vec<_> =
        ranks.into_iter().map(standing).filter(|(_, standing)| standing.is_missing()).collect();
    if missing.is_empty() {
        let (rank, standing) = standing(timeout.waited_for);
        return format!(
            "{}; every rank got there, so a link is slow or stuck",
            Sentence(rank, &standing, Tense::Over)
        );
    }
    leave_out_who_waits(&mut missing);
    sentences(missing, Tense::Over)
}

/// Leaves those out who are kept waiting by another one of them, who alone is to be named: ranks that are
/// still joining, and those in an earlier operation that another has not entered or says nothing of.
fn leave_out_who_waits(missing: &mut Vec<(Rank, Standing<'_>)>) {
    let joins = |standing: &Standing<'_>| matches!(standing, Standing::Joining(_));
    let waits = |standing: &Standing<'_>| matches!(standing, Standing::Behind(_));
    if missing.iter().any(|(_, one)| !joins(one) && !waits(one)) {
        missing.retain(|(_, one)| !joins(one));
    }
    // The first operation that one of the others has not entered, as far as is known.
    let reached = |standing: &Standing<'_>| match standing {
        Standing::Silent | Standing::Joining(_) | Standing::Idle(_) => Some(0),
        Standing::Outside(last, _) => Some(last.operation.seq + 1),
        Standing::Behind(_) | Standing::There(_) | Standing::Past(_) => None,
    };
    let Some(reached) = missing.iter().filter_map(|(_, one)| reached(one)).min() else {
        return;
    };
    missing.retain(|(_, one)| match one {
        Standing::Behind(last) => last.operation.seq < reached,
        _ => true,
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tense {
    Over,
    Running,
}

impl Tense {
    fn never_entered_it(self) -> &'static str {
        match self {
            Self::Over => "never entered it",
            Self::Running => "has not entered it",
        }
    }
}

fn sentences(missing: Vec<(Rank, Standing<'_>)>, tense: Tense) -> String {
    let mut sentences: Vec<String> = missing
        .iter()
        .take(CULPRITS_MAX)
        .map(|(rank, standing)| Sentence(*rank, standing, tense).to_string())
        .collect();
    if missing.len() > CULPRITS_MAX {
        let more = missing.len() - CULPRITS_MAX;
        sentences.push(format!("{more} more ranks are not there either"));
    }
    sentences.join("; ")
}

struct Sentence<'a>(Rank, &'a Standing<'a>, Tense);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rank, standing, tense) = self;
        let never = tense.never_entered_it();
        match standing {
            Standing::Silent => write!(
                f,
                "rank {rank} gives no account of itself: its process is stopped, or its host cannot be \
                 reached"
            ),
            Standing::Joining(awaited) => write!(
                f,
                "rank {rank} {never}: it is still joining the group, and is not connected to rank {}",
                list(awaited)
            ),
            Standing::Idle(progress) => write!(
                f,
                "rank {rank} {never}, and has called nothing in this group before{}",
                Aside(progress)
            ),
            Standing::Outside(last, progress) => write!(
                f,
                "rank {rank} {never}: its last call, {}, ended {} s ago, and the program has \
                 been busy with something else since{}",
                last,
                Seconds(last.ended_ago.unwrap_or_default()),
                Aside(progress)
            ),
            Standing::Behind(last) => write!(
                f,
                "rank {rank} {never}: it is still in {}, for {} s",
                last,
                Seconds(last.started_ago)
            ),
            Standing::There(last) => {
                write!(f, "rank {rank} entered it {} s ago", Seconds(last.started_ago))
            }
            Standing::Past(last) => write!(f, "rank {rank} went on to {}", last),
        }
    }
}

struct Aside<'a>(&'a Progress);

impl fmt::Display for Aside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
