//! Groups that end together: those that were made from one another, as one process has them.
//!
//! The first failure in any of them is the failure of all, at once on this rank. The other ranks hear of it in
//! the group where it began, as of any failure, and their groups end likewise; whoever is not in that group is
//! told in one that he is in.

use std::ptr;
use std::sync::{Arc, PoisonError, Weak};

use bonfire_plan::Rank;

use crate::health::control::{self, Peer};
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use bonfire_connect::platform::sync::{Mutex, MutexGuard};

/// What the groups have in common.
///
/// Its lock is taken before that of a [`Poison`], and neither is held while anybody is told.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first failure.
    fate: Option<Fate>,
    groups: Vec<Weak<Poison>>,
}

/// How a group is bound to the others.
#[derive(Clone, Debug)]
pub(crate) struct Bond {
    pub(crate) domain: Arc<Domain>,
    /// The group's number in the job.
    pub(crate) number: u32,
    /// The rank in the job of each rank of the group.
    pub(crate) members: Arc<[Rank]>,
    /// Who is told; nobody where all ranks are threads of this process.
    pub(crate) peers: Option<Weak<Vec<Peer>>>,
}

/// A failure in words that do not depend on the group.
#[derive(Clone, Debug)]
struct Fate {
    /// The rank in the job of the culprit, where one is named.
    culprit: Option<Rank>,
    cause: String,
}

impl Domain {
    /// Binds a group to the others: from now on they end together. A group that threads share is bound by the
    /// first of them.
    pub(crate) fn join(poison: &Arc<Poison>, bond: Bond) {
        let bond = Arc::new(bond);
        let domain = &bond.domain;
        let ended_before = {
            let mut state = domain.state();
            if !poison.bind(&bond) {
                return;
            }
            state.groups.retain(|group| group.strong_count() > 0);
            state.groups.push(Arc::downgrade(poison));
            if let Some(fate) = &state.fate {
                poison.record(fate.seen_from(&bond));
            }
            poison.failure().filter(|_| state.fate.is_none())
        };
        if let Some(failure) = ended_before {
            domain.fail(poison, &bond, failure);
        }
    }

    /// Ends all groups with what happened in one of them, unless they have ended. Whether that one failed just
    /// now; its own peers are told by the caller.
    pub(crate) fn fail(&self, poison: &Poison, bond: &Bond, failure: Failure) -> bool {
        let (is_first, others) = {
            let mut state = self.state();
            if let Some(fate) = &state.fate {
                return poison.record(fate.seen_from(bond));
            }
            let fate = Fate::of(&failure, bond);
            let is_first = poison.record(failure);
            let others = state.groups.iter().filter_map(Weak::upgrade);
            let others = others.filter(|other| !ptr::eq(&**other, poison));
            let mut told: Vec<(Arc<Poison>, Arc<Bond>, Failure)> = Vec::new();
            for other in others {
                let its_bond = other.bond().expect("it was bound when it joined");
                let failure = fate.seen_from(&its_bond);
                if other.record(failure.clone()) {
                    told.push((other, its_bond, failure));
                }
            }
            state.fate = Some(fate);
            (is_first, told)
        };
        for (_, its_bond, failure) in &others {
            its_bond.tell(failure, |rank| hears(rank, (poison, bond)));
        }
        is_first
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a rank of the job hears of a failure in the group where this process has it from.
fn hears(rank: Rank, (poison, bond): (&Poison, &Bond)) -> bool {
    let place = bond.members.iter().position(|member| *member == rank);
    place.is_some_and(|place| !poison.has_departed(Rank::new(place as u32)))
}

impl Bond {
    /// Tells those of the group of whom it is not known that they hear of it otherwise.
    fn tell(&self, failure: &Failure, hears: impl Fn(Rank) -> bool) {
        let Some(peers) = self.peers.as_ref().and_then(Weak::upgrade) else {
            return;
        };
        control::tell(&peers, failure, |rank| !hears(self.members[rank.index()]));
    }
}

impl Fate {
    fn of(failure: &Failure, bond: &Bond) -> Self {
        match failure {
            Failure::Peer { rank, cause } => Self {
                culprit: bond.members.get(rank.index()).copied(),
                cause: cause.clone(),
            },
            Failure::Elsewhere { rank, cause } => Self {
                culprit: *rank,
                cause: cause.clone(),
            },
            other => Self {
                culprit: None,
                cause: format!("{other} (in group {})", bond.number),
            },
        }
    }

    /// As the ranks of a group know it.
    fn seen_from(&self, bond: &Bond) -> Failure {
        let cause = self.cause.clone();
        let place = |culprit| bond.members.iter().position(|member| *member == culprit);
        match self.culprit.and_then(place) {
            Some(place) => Failure::Peer {
                rank: Rank::new(place as u32),
                cause,
            },
            None => Failure::Elsewhere {
                rank: self.culprit,
                cause,
            },
        }
    }
}

#[cfg(test)]
mod tests;
