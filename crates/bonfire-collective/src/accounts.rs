//! What the ranks were doing when their group failed, and what follows from it.
//!
//! Each rank gives an account of itself from its flight recorder: threads of one process look into each
//! other's, processes send theirs over the control channel when they hear of the failure. The thread
//! that does so runs while the program hangs, so the only ranks without an account are those whose
//! process is stopped or dead or cannot be reached.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use bonfire_plan::{Collective, Rank, WorldSize};
use serde::{Deserialize, Serialize};

use crate::error::Timeout;
use crate::flight::Desk;
use crate::platform::sync::{Mutex, MutexGuard};
use crate::recorder::{Record, Recorder};

/// Culprits that are named one by one.
const CULPRITS_MAX: usize = 4;

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) rank: Rank,
    /// Its last operation of the group, if it has called any.
    pub(crate) last: Option<Record>,
}

/// The accounts of the ranks of one group.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Of the ranks of this process.
    witnesses: Mutex<BTreeMap<Rank, Witness>>,
    received: Mutex<BTreeMap<Rank, Account>>,
    /// The same for every caller, and put together once.
    verdict: OnceLock<String>,
    /// Whether the flight records of this process are written.
    written: OnceLock<()>,
}

/// A rank of this process.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    pub(crate) recorder: Arc<Recorder>,
    /// Where it leaves its flight record, if anywhere.
    pub(crate) desk: Option<Desk>,
}

impl Accounts {
    /// A rank of this process, and where it writes down what it does.
    pub(crate) fn add(&self, rank: Rank, witness: Witness) {
        lock(&self.witnesses).insert(rank, witness);
    }

    /// Leaves the flight records of this process behind, once.
    pub(crate) fn write_flight_records(&self, failure: &str) {
        self.written.get_or_init(|| {
            let witnesses = lock(&self.witnesses).clone();
            for (rank, Witness { recorder, desk }) in witnesses {
                let Some(desk) = desk else { continue };
                match desk.write(failure, recorder.records()) {
                    Ok(path) => tracing::info!(
                        target: "bonfire",
                        "rank {rank}: flight record in {}", path.display()
                    ),
                    Err(error) => tracing::warn!(
                        target: "bonfire",
                        "rank {rank}: no flight record in {}: {error}", desk.folder.display()
                    ),
                }
            }
        });
    }

    /// What another process said of one of its ranks. The first account counts: it is the closest to
    /// the failure.
    pub(crate) fn receive(&self, account: Account) {
        lock(&self.received).entry(account.rank).or_insert(account);
    }

    /// The accounts of the ranks of this process.
    pub(crate) fn own(&self) -> Vec<Account> {
        let account = |(rank, witness): (&Rank, &Witness)| Account {
            rank: *rank,
            last: witness.recorder.records().next(),
        };
        lock(&self.witnesses).iter().map(account).collect()
    }

    /// Everybody's account, as far as it is known.
    pub(crate) fn all(&self) -> BTreeMap<Rank, Account> {
        let mut all = lock(&self.received).clone();
        all.extend(
            self.own()
                .into_iter()
                .map(|account| (account.rank, account)),
        );
        all
    }

    /// Why a rank waited in vain, in words. `wait` gives the accounts of other processes time to come.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a rank is, compared with an operation.
#[derive(Debug)]
enum Standing<'a> {
    /// Nobody knows.
    Silent,
    /// It has called nothing yet.
    Idle,
    /// It has left this earlier operation and not entered the next.
    Outside(&'a Record),
    /// It is still in this earlier operation.
    Behind(&'a Record),
    /// It is there.
    There(&'a Record),
    /// It has been there, or is in an operation of which the order is not known.
    Past(&'a Record),
}

impl<'a> Standing<'a> {
    fn of(account: Option<&'a Account>, timeout: &Timeout) -> Self {
        let Some(account) = account else {
            return Self::Silent;
        };
        let Some(last) = &account.last else {
            return Self::Idle;
        };
        let (its, ours) = (&last.call.operation, &timeout.operation);
        if its.seq == ours.seq && its.collective == ours.collective {
            return Self::There(last);
        }
        // Pairs of ranks count for themselves.
        let comparable = !is_of_a_pair(its.collective) && !is_of_a_pair(ours.collective);
        match last.ended_ago {
            Some(_) if !comparable || its.seq < ours.seq => Self::Outside(last),
            None if !comparable || its.seq < ours.seq => Self::Behind(last),
            _ => Self::Past(last),
        }
    }

    fn is_missing(&self) -> bool {
        !matches!(self, Self::There(_) | Self::Past(_))
    }
}

fn is_of_a_pair(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::Transfer { .. } | Collective::Exchange { .. }
    )
}

/// The ranks that the others wait for, as far as the accounts show. For an operation of two ranks only
/// the one that was waited for matters.
fn verdict(timeout: &Timeout, world_size: WorldSize, accounts: &BTreeMap<Rank, Account>) -> String {
    let ranks: Vec<Rank> = if is_of_a_pair(timeout.operation.collective) {
        vec![timeout.waited_for]
    } else {
        world_size
            .ranks()
            .filter(|rank| *rank != timeout.rank)
            .collect()
    };
    let standing = |rank: &Rank| (*rank, Standing::of(accounts.get(rank), timeout));
    let standings: Vec<_> = ranks.iter().map(standing).collect();
    let missing: Vec<_> = standings
        .iter()
        .filter(|(_, standing)| standing.is_missing())
        .collect();
    if missing.is_empty() {
        let (rank, standing) = standings
            .iter()
            .find(|(rank, _)| *rank == timeout.waited_for)
            .expect("who was waited for is in the group");
        return format!(
            "{}; every rank got there, so a link is slow or stuck",
            Sentence(*rank, standing)
        );
    }
    let mut sentences: Vec<String> = missing
        .iter()
        .take(CULPRITS_MAX)
        .map(|(rank, standing)| Sentence(*rank, standing).to_string())
        .collect();
    if missing.len() > CULPRITS_MAX {
        let more = missing.len() - CULPRITS_MAX;
        sentences.push(format!("{more} more ranks are not there either"));
    }
    sentences.join("; ")
}

/// What is known of one rank.
struct Sentence<'a>(Rank, &'a Standing<'a>);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rank, standing) = self;
        match standing {
            Standing::Silent => write!(
                f,
                "rank {rank} gives no account of itself: its process is stopped, or its host cannot be \
                 reached"
            ),
            Standing::Idle => write!(
                f,
                "rank {rank} never entered it, and has called nothing in this group before"
            ),
            Standing::Outside(last) => write!(
                f,
                "rank {rank} never entered it: its last call, {}, ended {} s ago, and the program has \
                 been busy with something else since",
                last.call,
                Seconds(last.ended_ago.unwrap_or_default())
            ),
            Standing::Behind(last) => write!(
                f,
                "rank {rank} never entered it: it is still in {}, for {} s",
                last.call,
                Seconds(last.started_ago)
            ),
            Standing::There(last) => write!(
                f,
                "rank {rank} entered it {} s ago",
                Seconds(last.started_ago)
            ),
            Standing::Past(last) => write!(f, "rank {rank} went on to {}", last.call),
        }
    }
}

/// With one decimal.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
