//! What the ranks of a group do while it runs, and who waits for whom.

use std::collections::BTreeMap;
use std::time::Duration;

use bonfire_plan::{Collective, Operation, Rank, WorldSize};
use serde::{Deserialize, Serialize};

use super::{RankReport, Standing, Tense, leave_out_who_waits, sentences};
use crate::health::flight::FlightRecord;
use crate::health::recorder::FlightOperation;
use crate::health::stragglers::StragglerReport;

const WAIT_MIN: Duration = Duration::from_secs(1);
/// All ranks may be in one call, and in no operation, for as long: they compute.
const STANDSTILL_MIN: Duration = Duration::from_secs(20);
/// Ranks that are listed one by one.
const LISTED_MAX: usize = 4;

/// What the ranks of one group did at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Number of the group in its job; 0 is all ranks of the job.
    pub group: u32,
    /// The number of its ranks.
    pub world_size: u32,
    /// What each rank said of itself, in rank order; see [`silent`](Self::silent) for the others.
    pub records: Vec<FlightRecord>,
    /// Ranks that have left the group in peace.
    pub departed: Vec<Rank>,
    /// Who keeps the others waiting, if that has been found out.
    pub stragglers: Option<StragglerReport>,
}

impl GroupReport {
    /// What these records, at least one and all of one group, say together.
    pub fn of(records: &[FlightRecord]) -> Option<Self> {
        let first = records.first()?;
        Some(Self {
            group: first.group,
            world_size: first.world_size,
            records: records.to_vec(),
            departed: Vec::new(),
            stragglers: None,
        })
    }

    /// Ranks that are in the group and said nothing: stopped, or out of reach.
    pub fn silent(&self) -> Vec<Rank> {
        let said = |rank: &Rank| self.records.iter().any(|record| record.rank == *rank);
        let ranks = (0..self.world_size).map(Rank::new);
        ranks.filter(|rank| !said(rank) && !self.departed.contains(rank)).collect()
    }

    /// The number in the whole job of a rank of this group, if it is known here.
    pub fn job_rank(&self, rank: Rank) -> Option<Rank> {
        let mut records = self.records.iter();
        match self.group {
            0 => Some(rank),
            _ => records.find(|record| record.rank == rank).map(|record| record.job_rank),
        }
    }

    /// Why the group failed, as the rank knew that noticed first; nothing while it runs.
    pub fn failure(&self) -> Option<&str> {
        let failed = self.records.iter().filter(|one| one.failure.is_some());
        // Whoever notices a failure first knows most of it.
        let first = failed.min_by_key(|record| record.written)?;
        first.failure.as_deref()
    }

    /// Why the group failed or, while it runs, which ranks the others wait for, in words.
    pub fn verdict(&self) -> String {
        match (self.failure(), WorldSize::new(self.world_size)) {
            (Some(failure), _) => failure.to_owned(),
            (None, Ok(world_size)) => self.running_verdict(world_size),
            (None, Err(_)) => "a group of no ranks".to_owned(),
        }
    }

    /// Of a failed group the ranks that the others waited for in vain, of which those that waited themselves are
    /// none; nobody if nobody waited.
    pub fn late(&self) -> Vec<Rank> {
        let reports: BTreeMap<Rank, RankReport> = self.records.iter().map(report_of).collect();
        let Some((rank, last)) = furthest_wait(&waits(&reports)) else {
            return Vec::new();
        };
        let Ok(world_size) = WorldSize::new(self.world_size) else {
            return Vec::new();
        };
        let operation = &last.operation;
        let mut missing: Vec<(Rank, Standing<'_>)> = self
            .others(world_size, rank, operation.collective)
            .into_iter()
            .map(|rank| (rank, Standing::of(reports.get(&rank), operation)))
            .filter(|(_, standing)| standing.is_missing())
            .collect();
        leave_out_who_waits(&mut missing);
        missing.into_iter().map(|(rank, _)| rank).collect()
    }

    /// Returns the operation that the running ranks wait in, with the lowest of these ranks.
    pub(crate) fn waited_in(&self) -> Option<(Rank, Operation)> {
        let reports: BTreeMap<Rank, RankReport> = self.records.iter().map(report_of).collect();
        let waits = waits(&reports);
        let (_, last) = furthest_wait(&waits)?;
        let is_in = |(_, record): &&(Rank, &FlightOperation)| last.is_same(record);
        let (first, last) = waits.iter().find(is_in)?;
        Some((*first, last.operation.clone()))
    }

    fn running_verdict(&self, world_size: WorldSize) -> String {
        let reports: BTreeMap<Rank, RankReport> = self.records.iter().map(report_of).collect();
        let waits = waits(&reports);
        let silent = self.silent();
        let longest = waits.iter().map(|(_, last)| last.started_ago).max();
        match furthest_wait(&waits) {
            Some((rank, last)) if !silent.is_empty() || longest >= Some(WAIT_MIN) => {
                let others = self.others(world_size, rank, last.operation.collective);
                self.who_is_missed(&others, last, &waits, &reports)
            }
            _ if silent.is_empty() => self.standstill().unwrap_or_else(|| {
                format!("it continues: no rank has waited for longer than {} s", WAIT_MIN.as_secs())
            }),
            _ => {
                let standings = silent.iter().map(|rank| (*rank, Standing::Silent)).collect();
                sentences(standings, Tense::Running)
            }
        }
    }

    /// The report that all ranks have been in one call of the program for long, and in no operation.
    fn standstill(&self) -> Option<String> {
        let first = self.records.first()?.progress.phase.as_ref()?;
        let mut shortest = Duration::MAX;
        for record in &self.records {
            let phase = record.progress.phase.as_ref()?;
            let ended = record.operations.first()?.ended_ago?;
            if phase.name != first.name {
                return None;
            }
            shortest = shortest.min(ended).min(phase.began_ago);
        }
        // What comes after a call is the program's own, which may take any time.
        let is_call = !first.name.starts_with("after ");
        (is_call && shortest >= STANDSTILL_MIN).then(|| {
            let (name, seconds) = (&first.name, shortest.as_secs_f64());
            format!(
                "suspicious: all ranks have been in {name} for {seconds:.1} s and have exchanged nothing since; if no \
                 step computes for so long, they wait for something that is no rank"
            )
        })
    }

    /// Who is to be in an operation with `rank`.
    fn others(&self, world_size: WorldSize, rank: Rank, collective: Collective) -> Vec<Rank> {
        let pair = match collective {
            Collective::Transfer { source, target } => Some((source, target)),
            Collective::Exchange { first, second } => Some((first, second)),
            _ => None,
        };
        let is_in = |other: &Rank| pair.is_none_or(|(one, two)| *other == one || *other == two);
        let ranks = world_size.ranks().filter(is_in);
        ranks.filter(|other| *other != rank && !self.departed.contains(other)).collect()
    }

    fn who_is_missed(
        &self,
        others: &[Rank],
        last: &FlightOperation,
        waits: &[(Rank, &FlightOperation)],
        reports: &BTreeMap<Rank, RankReport>,
    ) -> String {
        let operation = &last.operation;
        let there: Vec<(Rank, &FlightOperation)> =
            waits.iter().filter(|(_, record)| last.is_same(record)).copied().collect();
        let longest = there.iter().map(|(_, record)| record.started_ago).max();
        let waited = longest.unwrap_or_default().as_secs_f64();
        let standings: Vec<(Rank, Standing<'_>)> = others
            .iter()
            .map(|rank| (*rank, Standing::of(reports.get(rank), operation)))
            .filter(|(_, standing)| standing.is_missing())
            .collect();
        let ranks: Vec<Rank> = there.iter().map(|(rank, _)| *rank).collect();
        let (subject, verb) = match &ranks[..] {
            [one] => (format!("rank {one}"), "waits"),
            _ => (listed(&ranks), "wait"),
        };
        if standings.is_empty() {
            let are = if ranks.len() == 1 { "is" } else { "are" };
            return format!(
                "{subject} {are} in {} for {waited:.1} s, and nobody is missing: it takes its time, or a \
                 link is slow or stuck",
                last
            );
        }
        format!(
            "{subject} {verb} in {} for {waited:.1} s: {}",
            last,
            sentences(standings, Tense::Running)
        )
    }
}

fn waits(reports: &BTreeMap<Rank, RankReport>) -> Vec<(Rank, &FlightOperation)> {
    reports
        .values()
        .filter_map(|report| Some((report.rank, report.last.as_ref()?)))
        .filter(|(_, last)| last.ended_ago.is_none())
        .collect()
}

/// The furthest operation of all ranks: the one that the last comer is missed in.
fn furthest_wait<'a>(waits: &[(Rank, &'a FlightOperation)]) -> Option<(Rank, &'a FlightOperation)> {
    let furthest = |(_, last): &(Rank, &FlightOperation)| {
        let operation = &last.operation;
        let is_of_all = !operation.collective.is_point_to_point();
        (is_of_all, operation.seq * u64::from(is_of_all), last.started_ago)
    };
    waits.iter().copied().max_by_key(furthest)
}

fn report_of(record: &FlightRecord) -> (Rank, RankReport) {
    let report = RankReport {
        rank: record.rank,
        last: record.operations.first().cloned(),
        progress: record.progress.clone(),
        awaited: Vec::new(),
    };
    (record.rank, report)
}

/// A few ranks by their numbers, more by how many they are.
pub(super) fn listed(ranks: &[Rank]) -> String {
    if ranks.len() > LISTED_MAX {
        return format!("{} ranks", ranks.len());
    }
    let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    match ranks.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("ranks {} and {last}", rest.join(", ")),
        _ => format!("rank {}", ranks.concat()),
    }
}

#[cfg(test)]
mod tests;
