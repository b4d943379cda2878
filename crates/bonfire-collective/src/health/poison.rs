//! The state that ends a group: the first failure anywhere, and who has left in peace.
//!
//! Every wait of the group looks here between two naps, so a failure ends it within
//! [`NAP_MAX`](crate::health::wait::NAP_MAX).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bonfire_plan::{Rank, WorldSize};

use crate::health::domain::Bond;
use crate::health::failure::Failure;
use crate::health::reports::Reports;
use bonfire_connect::platform::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Poison {
    /// Set after the failure is; spares the waits the lock.
    failed: AtomicBool,
    state: Mutex<State>,
    departed: Vec<AtomicBool>,
    reports: Reports,
}

#[derive(Debug, Default)]
struct State {
    failure: Option<Failure>,
    /// To the groups that end with this one, once it is complete.
    bond: Option<Arc<Bond>>,
}

impl Poison {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self {
            failed: AtomicBool::new(false),
            state: Mutex::default(),
            departed: world_size.ranks().map(|_| AtomicBool::new(false)).collect(),
            reports: Reports::default(),
        }
    }

    /// Records the failure unless there is one already. True for the caller that came first and
    /// must notify the other ranks.
    pub(crate) fn set(&self, failure: Failure) -> bool {
        let bond = {
            let mut state = self.state.lock();
            match &state.bond {
                None => return self.record_in(&mut state, failure),
                Some(_) if state.failure.is_some() => return false,
                Some(bond) => Arc::clone(bond),
            }
        };
        bond.domain.fail(self, &bond, failure)
    }

    /// Records the failure of this group alone, unless there is one already.
    pub(super) fn record(&self, failure: Failure) -> bool {
        self.record_in(&mut self.state.lock(), failure)
    }

    fn record_in(&self, state: &mut State, failure: Failure) -> bool {
        if state.failure.is_some() {
            return false;
        }
        state.failure = Some(failure);
        // Release pairs with the acquire in `failure`.
        self.failed.store(true, Ordering::Release);
        true
    }

    pub(super) fn bind(&self, bond: &Arc<Bond>) -> bool {
        let mut state = self.state.lock();
        let is_first = state.bond.is_none();
        state.bond.get_or_insert_with(|| Arc::clone(bond));
        is_first
    }

    pub(super) fn bond(&self) -> Option<Arc<Bond>> {
        self.state.lock().bond.clone()
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().failure.clone()
    }

    /// A rank left in peace: what it sent before stays valid, nothing more will come.
    pub(crate) fn depart(&self, rank: Rank) {
        // Release pairs with the acquire in `has_departed`: a thread that sees the departure also sees
        // the frames published before it.
        self.departed[rank.index()].store(true, Ordering::Release);
    }

    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    pub(crate) fn has_departed(&self, rank: Rank) -> bool {
        self.departed[rank.index()].load(Ordering::Acquire)
    }
}
