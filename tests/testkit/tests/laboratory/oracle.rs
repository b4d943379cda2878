//! What may come of a scenario. Only the truth: an error must name a rank that really failed, as the
//! rank that says so can know it.

use std::collections::BTreeSet;
use std::time::Duration;

use bonfire_collective::{CollectiveError, ConnectError, Rank, StoreHost};
use bonfire_laboratory::Report;

use crate::job::{Ending, Outcome, RankEnding};
use crate::scenario::{Scenario, Trouble};

/// What an operation may take beyond its deadline: to ask the others what they did, and to tell them.
const BEYOND: Duration = Duration::from_secs(5);

/// What set-up may take beyond its deadline: one more try that began before it.
const SETUP_BEYOND: Duration = Duration::from_secs(30);

/// Whom an error blames.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    Ranks(BTreeSet<u32>),
    Store,
    Nobody,
}

/// What is wrong with an ending.
pub(crate) fn faults_of(scenario: &Scenario, ending: &Ending) -> Vec<String> {
    let report = &ending.report;
    let mut faults: Vec<String> = report.panics.clone();
    faults.extend(report.hang.iter().map(|hang| format!("hung {hang}")));
    for (rank, found) in (0..).zip(&ending.ranks) {
        let fault = match found {
            Some(found) => fault_of(scenario, rank, (found, report)),
            None => (!may_be_lost(scenario, rank)).then(|| "it was lost".to_owned()),
        };
        faults.extend(fault.map(|fault| format!("rank {rank}: {fault}")));
    }
    if !faults.is_empty() {
        let (trouble, at) = (scenario.trouble, scenario.trouble_at);
        faults.insert(0, format!("{trouble:?} at {at:?}"));
    }
    faults
}

/// Whether a rank may be gone without a word.
fn may_be_lost(scenario: &Scenario, rank: u32) -> bool {
    match scenario.trouble {
        Trouble::Kill { rank: killed } => killed == rank,
        Trouble::Stop { rank: stopped, span } => stopped == rank && span.is_none(),
        _ => false,
    }
}

fn fault_of(
    scenario: &Scenario,
    rank: u32,
    (ending, report): (&RankEnding, &Report),
) -> Option<String> {
    let is_own_trouble = matches!(
        scenario.trouble,
        Trouble::Stop { rank: stopped, .. } if stopped == rank
    );
    let (what, error, limit) = match &ending.outcome {
        Outcome::Done => return None,
        Outcome::Wrong { call } => return Some(format!("wrong result of call {call}")),
        Outcome::Apart(error) => {
            let limit = scenario.options.startup_timeout + SETUP_BEYOND;
            ("joining".to_owned(), error, limit)
        }
        Outcome::Failed { call, error } => {
            let limit = scenario.options.timeout + BEYOND;
            (format!("call {call}"), error, limit)
        }
    };
    if scenario.is_harmless() {
        return Some(format!("{what}: an error without a reason: {error}"));
    }
    if is_own_trouble {
        // Whatever it finds when it runs again, it is too late.
        return None;
    }
    if ending.span > limit {
        return Some(format!("{what} took {:?}, more than {limit:?}: {error}", ending.span));
    }
    let culprits = culprits(scenario, rank, report);
    let is_true = match blame(error) {
        Blame::Ranks(blamed) => !blamed.is_empty() && blamed.is_subset(&culprits),
        // It is on the host of rank 0, in a process of its own or in rank 0's.
        Blame::Store => {
            let is_cut_off =
                !matches!(scenario.trouble, Trouble::Kill { .. } | Trouble::Stop { .. });
            culprits.contains(&0) && (is_cut_off || scenario.store != StoreHost::Agent)
        }
        Blame::Nobody => false,
    };
    (!is_true).then(|| format!("{what}: the culprits are {culprits:?}, but: {error}"))
}

/// Who may be named by `rank`.
fn culprits(scenario: &Scenario, rank: u32, report: &Report) -> BTreeSet<u32> {
    let ranks = || 0..scenario.world_size();
    let host = |rank: u32| scenario.hosts[rank as usize];
    let on = |pairs: &[[usize; 2]]| -> BTreeSet<u32> {
        let is_on = |rank: &u32| pairs.iter().flatten().any(|one| *one == host(*rank));
        ranks().filter(is_on).collect()
    };
    match scenario.trouble {
        Trouble::Nothing => BTreeSet::new(),
        Trouble::Kill { rank } | Trouble::Stop { rank, .. } => BTreeSet::from([rank]),
        Trouble::Cut { side, span } => {
            let is_over_there =
                |other: &u32| ((side >> host(*other)) ^ (side >> host(rank))) & 1 == 1;
            // What one side said of the other may come after the cut is over.
            ranks().filter(|other| span.is_some() || is_over_there(other)).collect()
        }
        Trouble::Reset { hosts } | Trouble::Flip { hosts } => on(&[hosts]),
        Trouble::Breaks => on(&report.breaks),
    }
}

fn blame(error: &CollectiveError) -> Blame {
    let ranks = |ranks: Vec<u32>| Blame::Ranks(ranks.into_iter().collect());
    match error {
        CollectiveError::PeerFailed { rank, .. } => ranks(vec![rank.get()]),
        CollectiveError::Corrupted(corruption) => {
            let ends = [corruption.source, corruption.target];
            ranks(ends.map(Rank::get).to_vec())
        }
        CollectiveError::Timeout(timeout) => {
            let named = named(&timeout.verdict);
            if named.is_empty() {
                ranks(vec![timeout.waited_for.get()])
            } else {
                Blame::Ranks(named)
            }
        }
        CollectiveError::Connect(error) => match &**error {
            ConnectError::Missing { missing, .. } => {
                ranks(missing.iter().map(|rank| rank.get()).collect())
            }
            ConnectError::Unreachable { theirs, .. } => ranks(vec![theirs.get()]),
            ConnectError::HostsApart(reach) => {
                ranks(reach.culprits().iter().map(|rank| rank.get()).collect())
            }
            ConnectError::GroupFailed(failure) => blame(failure),
            ConnectError::Store(_) => Blame::Store,
            _ => Blame::Nobody,
        },
        _ => Blame::Nobody,
    }
}

/// The ranks of whom a verdict speaks: each of its sentences begins with one.
fn named(verdict: &str) -> BTreeSet<u32> {
    let sentences = verdict.split("; ");
    let rank = |sentence: &str| {
        let words = sentence.strip_prefix("rank ")?;
        words.split(' ').next()?.parse().ok()
    };
    sentences.filter_map(rank).collect()
}
