//! What the ranks of a failed group did last, in words: a line for all that did the same.

use std::collections::BTreeMap;
use std::time::Duration;

use bonfire_plan::Rank;

use super::running::listed;
use super::{Aside, GroupReport, Seconds};
use crate::health::failure::DISAGREE;
use crate::health::flight::FlightRecord;

/// Lines; more kinds of ranks are counted.
const LINES_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    /// They were in this operation.
    In(String),
    /// They had left it and entered no other.
    After(String),
    Nothing,
    Gone,
}

#[derive(Debug, Default)]
struct Ranks<'a> {
    ranks: Vec<Rank>,
    longest: Duration,
    records: Vec<&'a FlightRecord>,
}

impl GroupReport {
    /// What the ranks did when their group failed, those that did as most did first.
    pub fn statuses(&self) -> Vec<String> {
        let mut kinds: BTreeMap<Status, Ranks<'_>> = BTreeMap::new();
        for record in &self.records {
            let (status, time) = status(record);
            let kind = kinds.entry(status).or_default();
            kind.ranks.push(record.rank);
            kind.longest = kind.longest.max(time);
            kind.records.push(record);
        }
        let silent = self.silent();
        if !silent.is_empty() {
            kinds.entry(Status::Gone).or_default().ranks = silent;
        }
        let mut kinds: Vec<(Status, Ranks<'_>)> = kinds.into_iter().collect();
        // Who did as nobody else is the one to look at, and the last line is the one that is read.
        kinds.sort_by_key(|(status, kind)| {
            (*status == Status::Gone, std::cmp::Reverse(kind.ranks.len()))
        });
        let more = kinds.len().saturating_sub(LINES_MAX);
        let lines = kinds[more..].iter().map(|(status, kind)| kind.describe(status));
        let more = (more > 0).then(|| format!("others were in {more} more places"));
        more.into_iter().chain(lines).collect()
    }

    /// If the group failed because ranks were in different operations: the one that was in another than all
    /// others, or one of each side. Else nobody.
    pub fn disagreeing(&self) -> Vec<Rank> {
        let disagree = |failure: &str| failure.starts_with(DISAGREE);
        if !self.failure().is_some_and(disagree) {
            return Vec::new();
        }
        let mut kinds: BTreeMap<Status, Vec<Rank>> = BTreeMap::new();
        for record in &self.records {
            kinds.entry(status(record).0).or_default().push(record.rank);
        }
        let mut kinds: Vec<Vec<Rank>> = kinds.into_values().collect();
        kinds.sort_by_key(Vec::len);
        match &kinds[..] {
            [one, many, ..] if one.len() == 1 && many.len() > 1 => one.clone(),
            _ => kinds.iter().filter_map(|kind| kind.first().copied()).collect(),
        }
    }
}

fn status(record: &FlightRecord) -> (Status, Duration) {
    match record.operations.first() {
        None => (Status::Nothing, Duration::ZERO),
        Some(last) => match last.ended_ago {
            None => (Status::In(last.to_string()), last.started_ago),
            Some(ago) => (Status::After(last.to_string()), ago),
        },
    }
}

impl Ranks<'_> {
    fn describe(&self, status: &Status) -> String {
        let who = match &self.ranks[..] {
            [one] => format!("rank {one}"),
            ranks => listed(ranks),
        };
        let (were, seconds) =
            (if self.ranks.len() == 1 { "was" } else { "were" }, Seconds(self.longest));
        let aside = match self.records[..] {
            [record] => Aside(&record.progress).to_string(),
            _ => String::new(),
        };
        match status {
            Status::In(call) => format!("{who} {were} in {call} for {seconds} s{aside}"),
            Status::After(call) => format!("{who} had left {call} {seconds} s before{aside}"),
            Status::Nothing => format!("{who} had called nothing in this group{aside}"),
            Status::Gone => format!("{who} left no record: ended, stopped or out of reach"),
        }
    }
}

#[cfg(test)]
mod tests {
    use bonfire_plan::{Algorithm, Collective, DType};
    use bonfire_plan::{CallSite, Operation};

    use super::*;
    use crate::health::recorder::FlightOperation;
    use crate::health::recorder::Progress;

    fn record(rank: u32, last: Option<(u64, Option<u64>)>) -> FlightRecord {
        let operation = |(seq, ended_ago): (u64, Option<u64>)| FlightOperation {
            operation: Operation {
                group: 0,
                seq,
                step: None,
                collective: Collective::Barrier,
                algorithm: Algorithm::OneShot,
                dtype: DType::U8,
                reduce: None,
                count: 0,
                layout: 0,
                call_site: CallSite::default(),
            },
            name: None,
            enqueued_ago: None,
            started_ago: Duration::from_secs(3 + u64::from(rank)),
            ended_ago: ended_ago.map(Duration::from_secs),
        };
        FlightRecord {
            version: 1,
            group: 0,
            rank: Rank::new(rank),
            job_rank: Rank::new(rank),
            world_size: 5,
            process_id: 1,
            written: Duration::ZERO,
            failure: Some("rank 4 failed".to_owned()),
            progress: Progress::default(),
            waited: Duration::ZERO,
            operations: last.map(operation).into_iter().collect(),
        }
    }

    #[test]
    fn ranks_that_did_the_same_share_a_line_and_the_odd_ones_come_last() {
        let records = [
            record(0, Some((7, None))),
            record(1, None),
            record(2, Some((7, None))),
            record(3, Some((6, Some(2)))),
        ];
        let statuses = GroupReport::of(&records).unwrap().statuses();
        let expected = [
            "ranks 0 and 2 were in barrier #7 (u8 x 0, one_shot) for 5.0 s",
            "rank 3 had left barrier #6 (u8 x 0, one_shot) 2.0 s before",
            "rank 1 had called nothing in this group",
            "rank 4 left no record: ended, stopped or out of reach",
        ];
        assert_eq!(statuses, expected);
    }

    #[test]
    fn many_kinds_of_ranks_are_counted() {
        let mut records: Vec<FlightRecord> =
            (0..12).map(|rank| record(rank, Some((u64::from(rank), None)))).collect();
        for record in &mut records {
            record.world_size = 12;
        }
        let statuses = GroupReport::of(&records).unwrap().statuses();
        assert_eq!(statuses.len(), LINES_MAX + 1);
        assert!(statuses[0] == "others were in 4 more places", "{statuses:?}");
    }
}
