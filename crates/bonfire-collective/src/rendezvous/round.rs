//! One round of ranks that meet again in a store: who is there, and whether they all got through.
//!
//! Nobody leads. Whoever first finds that the round is complete, or that its time is over, closes it;
//! whoever first knows how it ended, decides that. An addition in the store makes either unique. A rank
//! that dies between the addition and what follows it costs the others this round, not the next.

use std::time::Duration;

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use super::{Address, Deadline, Settings};
use crate::store::{Store, StoreError};

/// Longest wait for the list of ranks before a look at who has come since.
const LOOK: Duration = Duration::from_millis(20);

/// How long who closes a round may take to say with whom.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Presence {
    /// In the first group of the job.
    pub(crate) rank: Rank,
    /// The generation that it comes from; none for a process that takes a lost one's place.
    pub(crate) generation: Option<u32>,
    /// The number that it picked for the group, in case it is the lowest there.
    pub(crate) picked: u32,
    pub(crate) settings: Settings,
    /// Where a process listens; nothing for a thread.
    pub(crate) address: Option<Address>,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// All are connected.
    Ready,
    /// Not all got through; there is another round.
    Failed,
}

/// What a rank does when its time for a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTheEnd {
    /// It goes on with those who are there.
    Close,
    /// It goes away: it has no state that others could go on with.
    Leave,
}

/// A round, as one rank sees it.
pub(crate) struct Round<'a> {
    store: &'a dyn Store,
    prefix: String,
    /// Everybody who has come, as far as it was read.
    present: Vec<Presence>,
    /// Places that were taken by the last look.
    arrived: i64,
    /// Those of them whose ranks have not said yet who they are. One that dies before stays here.
    unread: Vec<i64>,
}

impl<'a> Round<'a> {
    /// The round that makes this generation of an attempt of the job.
    pub(crate) fn of(store: &'a dyn Store, attempt: u32, generation: u32) -> Self {
        Self {
            store,
            prefix: format!("attempt/{attempt}/generation/{generation}"),
            present: Vec::new(),
            arrived: 0,
            unread: Vec::new(),
        }
    }

    /// Takes part, and waits until the round is closed; those who are in it, in the order of their
    /// ranks. Nothing if who closed it did not say who they are, or this rank leaves.
    pub(crate) fn muster(
        &mut self,
        mine: &Presence,
        (window, at_the_end): (Deadline, AtTheEnd),
        mut is_complete: impl FnMut(&[Presence]) -> bool,
    ) -> Result<Option<Vec<Presence>>, StoreError> {
        let place = self.store.add(&self.key("arrived"), 1)?;
        let text = serde_json::to_vec(mine).expect("a presence is plain data");
        self.store
            .set(&self.key(&format!("presence/{place}")), &text)?;
        loop {
            if let Some(roster) = self.roster(LOOK)? {
                return Ok(Some(roster));
            }
            self.read_present()?;
            let is_complete = is_complete(&self.present);
            let is_over = window.left().is_zero();
            if is_over && !is_complete && at_the_end == AtTheEnd::Leave {
                return Ok(None);
            }
            if is_complete || is_over {
                if self.store.add(&self.key("closed"), 1)? != 1 {
                    return self.roster(CLOSING_MAX);
                }
                let text = serde_json::to_vec(&self.present).expect("a list of plain data");
                self.store.set(&self.key("roster"), &text)?;
                return Ok(Some(self.present.clone()));
            }
        }
    }

    /// This rank is connected to all others of `count`.
    pub(crate) fn connected(&self, count: usize) -> Result<(), StoreError> {
        if self.store.add(&self.key("connected"), 1)? == count as i64 {
            self.decide(Outcome::Ready)?;
        }
        Ok(())
    }

    /// Ends the round so, unless it has ended already.
    pub(crate) fn decide(&self, outcome: Outcome) -> Result<(), StoreError> {
        if self.store.add(&self.key("decided"), 1)? == 1 {
            let text = serde_json::to_vec(&outcome).expect("an outcome is plain data");
            self.store.set(&self.key("outcome"), &text)?;
        }
        Ok(())
    }

    /// How the round ended, if that is known in time.
    pub(crate) fn outcome(&self, patience: Duration) -> Result<Option<Outcome>, StoreError> {
        self.value("outcome", patience)
    }

    fn roster(&self, patience: Duration) -> Result<Option<Vec<Presence>>, StoreError> {
        self.value("roster", patience)
    }

    /// Reads who has come since the last look. Who comes twice counts once, as it came last.
    fn read_present(&mut self) -> Result<(), StoreError> {
        let arrived = self.store.add(&self.key("arrived"), 0)?;
        self.unread.extend(self.arrived + 1..=arrived);
        self.arrived = arrived;
        for place in std::mem::take(&mut self.unread) {
            let name = format!("presence/{place}");
            let Some(presence) = self.value::<Presence>(&name, Duration::ZERO)? else {
                self.unread.push(place);
                continue;
            };
            self.present.retain(|other| other.rank != presence.rank);
            self.present.push(presence);
        }
        self.present.sort_by_key(|presence| presence.rank);
        Ok(())
    }

    fn value<T: for<'de> Deserialize<'de>>(
        &self,
        name: &str,
        patience: Duration,
    ) -> Result<Option<T>, StoreError> {
        match self.store.get(&self.key(name), patience) {
            // What cannot be read is of another version, whose ranks cannot be met.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(StoreError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::GroupOptions;
    use crate::store::MemoryStore;

    fn presence(rank: u32, picked: u32) -> Presence {
        Presence {
            rank: Rank::new(rank),
            generation: Some(0),
            picked,
            settings: Settings::new(&GroupOptions::default()),
            address: None,
        }
    }

    fn muster(
        store: &MemoryStore,
        mine: &Presence,
        count: usize,
        window_ms: u64,
    ) -> Option<Vec<u32>> {
        let window = Deadline::after(Duration::from_millis(window_ms));
        let mut round = Round::of(store, 0, 1);
        let roster = round.muster(mine, (window, AtTheEnd::Close), |present| {
            present.len() == count
        });
        Some(roster.unwrap()?.iter().map(|one| one.rank.get()).collect())
    }

    #[test]
    fn a_complete_round_is_the_same_for_all_and_in_order() {
        let store = MemoryStore::new();
        std::thread::scope(|scope| {
            let store = &store;
            let ranks = [3, 0, 2];
            let threads =
                ranks.map(|rank| scope.spawn(move || muster(store, &presence(rank, 1), 3, 60_000)));
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Some(vec![0, 2, 3]));
            }
        });
    }

    #[test]
    fn a_rank_that_dies_before_it_says_who_it_is_hides_nobody() {
        let store = MemoryStore::new();
        let round = Round::of(&store, 0, 1);
        round.store.add(&round.key("arrived"), 1).unwrap();
        assert_eq!(muster(&store, &presence(0, 1), 1, 60_000), Some(vec![0]));
    }

    #[test]
    fn who_comes_after_the_end_of_a_round_is_not_in_it() {
        let store = MemoryStore::new();
        assert_eq!(muster(&store, &presence(1, 1), 9, 0), Some(vec![1]));
        assert_eq!(muster(&store, &presence(0, 1), 9, 60_000), Some(vec![1]));
    }

    #[test]
    fn a_rank_that_comes_twice_counts_as_it_came_last() {
        let store = MemoryStore::new();
        let mut round = Round::of(&store, 0, 1);
        let early = Deadline::after(Duration::ZERO);
        round.store.add(&round.key("arrived"), 1).unwrap();
        let text = serde_json::to_vec(&presence(1, 5)).unwrap();
        round.store.set(&round.key("presence/1"), &text).unwrap();
        let roster = round
            .muster(&presence(1, 6), (early, AtTheEnd::Close), |_| false)
            .unwrap()
            .unwrap();
        assert_eq!(roster, [presence(1, 6)]);
    }

    #[test]
    fn who_only_fills_a_place_does_not_go_on_alone() {
        let store = MemoryStore::new();
        let mut round = Round::of(&store, 0, 1);
        let over = Deadline::after(Duration::ZERO);
        let roster = round.muster(&presence(1, 1), (over, AtTheEnd::Leave), |_| false);
        assert_eq!(roster.unwrap(), None);
    }

    #[test]
    fn a_round_whose_closer_died_is_nobody_s() {
        let store = MemoryStore::new();
        let round = Round::of(&store, 0, 1);
        round.store.add(&round.key("closed"), 1).unwrap();
        assert_eq!(muster(&store, &presence(0, 1), 1, 60_000), None);
    }

    #[test]
    fn the_first_decision_counts() {
        let store = MemoryStore::new();
        let round = Round::of(&store, 0, 1);
        assert_eq!(round.outcome(Duration::ZERO).unwrap(), None);
        round.connected(2).unwrap();
        assert_eq!(round.outcome(Duration::ZERO).unwrap(), None);
        round.connected(2).unwrap();
        round.decide(Outcome::Failed).unwrap();
        assert_eq!(round.outcome(Duration::ZERO).unwrap(), Some(Outcome::Ready));
        assert_eq!(
            Round::of(&store, 0, 2).outcome(Duration::ZERO).unwrap(),
            None
        );
    }
}
