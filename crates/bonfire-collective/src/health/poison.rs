//! The state that ends a group: the first failure anywhere, and who has left in peace.
//!
//! Every wait of the group looks here between two naps, so a failure ends it within
//! [`NAP_MAX`](crate::health::patience::NAP_MAX).

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use bonfire_plan::{Rank, WorldSize};

use crate::health::accounts::Accounts;
use crate::health::failure::Failure;
use bonfire_connect::platform::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Poison {
    /// Set after `failure` is; spares the waits the lock.
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    departed: Vec<AtomicBool>,
    accounts: Accounts,
}

impl Poison {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self {
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            departed: world_size.ranks().map(|_| AtomicBool::new(false)).collect(),
            accounts: Accounts::default(),
        }
    }

    /// Records the failure unless there is one already. True for the caller that came first and
    /// must notify the other ranks.
    pub(crate) fn set(&self, failure: Failure) -> bool {
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some() {
            return false;
        }
        *first = Some(failure);
        // Release pairs with the acquire in `failure`.
        self.failed.store(true, Ordering::Release);
        true
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A rank left in peace: what it sent before stays valid, nothing more will come.
    pub(crate) fn depart(&self, rank: Rank) {
        // Release pairs with the acquire in `has_departed`: a thread that sees the departure also sees
        // the frames published before it.
        self.departed[rank.index()].store(true, Ordering::Release);
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub(crate) fn has_departed(&self, rank: Rank) -> bool {
        self.departed[rank.index()].load(Ordering::Acquire)
    }
}
