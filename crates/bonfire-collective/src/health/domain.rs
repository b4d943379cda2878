//! Failure domains: the groups of one process that were made from one another end together.
//!
//! The first failure in any of them is the failure of all, at once on this rank. The other ranks receive it in
//! the group where it began, and their groups end likewise. Ranks outside that group receive it in a group that they
//! share with this rank.

use std::ptr;
use std::sync::{Arc, Weak};

use bonfire_plan::Rank;

use crate::health::control::{self, Peer};
use crate::health::failure::Failure;
use crate::health::poison::Poison;
use bonfire_connect::platform::sync::Mutex;

/// The groups of a domain, and their first failure.
///
/// Its lock is taken before that of a [`Poison`], and neither is held while peers are notified.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fate: Option<Fate>,
    groups: Vec<Weak<Poison>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bond {
    pub(crate) domain: Arc<Domain>,
    pub(crate) number: u32,
    /// The rank in the job of each rank of the group.
    pub(crate) members: Arc<[Rank]>,
    /// The peers to notify; none if all ranks are threads of this process.
    pub(crate) peers: Option<Weak<Vec<Peer>>>,
}

/// A failure, independent of the group that reports it.
#[derive(Clone, Debug)]
struct Fate {
    /// The rank in the job of the culprit, where one is named.
    culprit: Option<Rank>,
    cause: String,
}

impl Domain {
    /// Adds a group to its domain. A group that threads share is added by the first of them.
    pub(crate) fn join(poison: &Arc<Poison>, bond: Bond) {
        let bond = Arc::new(bond);
        let domain = &bond.domain;
        let ended_before = {
            let mut state = domain.state.lock();
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

    /// Returns the group of the domain whose state this is.
    pub(crate) fn group(&self, poison: &Poison) -> Option<Arc<Poison>> {
        self.groups().into_iter().find(|group| ptr::eq(&**group, poison))
    }

    /// Ends all groups with the failure of one of them, unless they have ended. Returns true if that group failed just
    /// now; the caller notifies its peers.
    pub(crate) fn fail(&self, poison: &Poison, bond: &Bond, failure: Failure) -> bool {
        let (is_first, others) = {
            let mut state = self.state.lock();
            if let Some(fate) = &state.fate {
                return poison.record(fate.seen_from(bond));
            }
            let fate = Fate::of(&failure, bond);
            let is_first = poison.record(failure);
            let others = state.groups.iter().filter_map(Weak::upgrade);
            let others = others.filter(|other| !ptr::eq(&**other, poison));
            let mut ended: Vec<(Arc<Poison>, Arc<Bond>, Failure)> = Vec::new();
            for other in others {
                let its_bond = other.bond().expect("it was bound when it joined");
                let failure = fate.seen_from(&its_bond);
                if other.record(failure.clone()) {
                    ended.push((other, its_bond, failure));
                }
            }
            state.fate = Some(fate);
            (is_first, ended)
        };
        for (_, its_bond, failure) in &others {
            its_bond.notify(failure, |rank| receives(rank, poison, bond));
        }
        is_first
    }

    /// Tells the peers of every group that a rank of the job, one of this process, has left.
    pub(crate) fn leave(&self, rank: Rank) {
        for poison in self.groups() {
            let bond = poison.bond().expect("it was bound when it joined");
            let Some(place) = bond.members.iter().position(|member| *member == rank) else {
                continue;
            };
            poison.depart(Rank::new(place as u32));
            if let Some(peers) = bond.peers.as_ref().and_then(Weak::upgrade) {
                control::say_farewell(&peers, &poison);
            }
        }
    }

    fn groups(&self) -> Vec<Arc<Poison>> {
        let state = self.state.lock();
        state.groups.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Returns true if a rank of the job receives the failure in the group where it began.
fn receives(rank: Rank, poison: &Poison, bond: &Bond) -> bool {
    let place = bond.members.iter().position(|member| *member == rank);
    place.is_some_and(|place| !poison.has_departed(Rank::new(place as u32)))
}

impl Bond {
    /// Sends a failure to the ranks of the group that do not receive it otherwise.
    fn notify(&self, failure: &Failure, receives: impl Fn(Rank) -> bool) {
        let Some(peers) = self.peers.as_ref().and_then(Weak::upgrade) else {
            return;
        };
        control::notify(&peers, failure, |rank| !receives(self.members[rank.index()]));
    }
}

impl Fate {
    fn of(failure: &Failure, bond: &Bond) -> Self {
        match failure {
            Failure::Peer { rank, cause } => {
                Self { culprit: bond.members.get(rank.index()).copied(), cause: cause.clone() }
            }
            Failure::Elsewhere { rank, cause } => Self { culprit: *rank, cause: cause.clone() },
            other => Self { culprit: None, cause: format!("{other} (in group {})", bond.number) },
        }
    }

    fn seen_from(&self, bond: &Bond) -> Failure {
        let cause = self.cause.clone();
        let place = |culprit| bond.members.iter().position(|member| *member == culprit);
        match self.culprit.and_then(place) {
            Some(place) => Failure::Peer { rank: Rank::new(place as u32), cause },
            None => Failure::Elsewhere { rank: self.culprit, cause },
        }
    }
}

#[cfg(test)]
mod tests;
