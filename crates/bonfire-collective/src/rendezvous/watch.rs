//! A look at the store by ranks that need it no more but are not all connected yet.
//!
//! A rank that gives up notifies those to which it is connected, and leaves word here for the
//! others: they would wait for it, and take it for the one that failed.
//!
//! Its server is on the host of rank 0, or is rank 0. If it is lost, some rank may have lost it
//! before it knew where the others are, and no rank will ever learn of that one: the ranks that
//! wait for it must not take it for the one that failed.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use super::{ConnectError, Deadline, connect_all, key};
use crate::health::failure::Failure;
use crate::options::place::{RankEnv, StoreHost};
use bonfire_connect::store::{Store, StoreError, TcpStore};

/// How long the ranks have to connect without the store. A job that comes together in this time
/// does not need it, and a rank that is connected to rank 0 learns by itself what became of it.
const GRACE: Duration = Duration::from_secs(5);
/// How often a rank looks whether another has given up; shorter than one that serves the store stays.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// How long a rank that gives up waits for each answer of the store, which may be the one that failed.
const PARTING_TIMEOUT: Duration = Duration::from_secs(2);
/// Where the first rank that gives up says why.
const FAILURE_KEY: &str = "failure";
const REPORTERS_KEY: &str = "given-up";

pub(super) struct Watch<'a> {
    store: &'a TcpStore,
    env: &'a RankEnv,
    next: Cell<Deadline>,
    /// Begins when the store is seen to be lost.
    grace: Cell<Option<Deadline>>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(store: &'a TcpStore, env: &'a RankEnv) -> Self {
        Self { store, env, next: Cell::new(Deadline::after(LOOK_AFTER)), grace: Cell::new(None) }
    }

    /// An error if another rank has given up, or the store has been lost for a while and these ranks are
    /// still missing. Waits for nothing.
    pub(super) fn look(&self, missing: &[Rank]) -> Result<(), ConnectError> {
        let first = Rank::new(0);
        // Rank 0 serves until all are connected to it, and keeps those that are informed.
        let is_needed = self.env.agent_store == StoreHost::Agent
            || self.env.rank == first
            || missing.contains(&first);
        if !is_needed {
            return Ok(());
        }
        match self.grace.get() {
            None => self.look_for_failure(),
            Some(grace) if grace.left().is_zero() => {
                Err(StoreError::Broken(io::ErrorKind::ConnectionAborted.into()).into())
            }
            Some(_) => Ok(()),
        }
    }

    fn look_for_failure(&self) -> Result<(), ConnectError> {
        if !self.next.get().left().is_zero() {
            return Ok(());
        }
        self.next.set(Deadline::after(LOOK_AFTER));
        match self.store.peek(&key(self.env, FAILURE_KEY)) {
            // What does not read as a failure is of another version, which can say nothing here.
            Ok(text) => match text.and_then(|text| serde_json::from_slice::<Failure>(&text).ok()) {
                Some(failure) => Err(ConnectError::GroupFailed(Box::new(failure.into()))),
                None => Ok(()),
            },
            Err(_) => {
                self.grace.set(Some(Deadline::after(GRACE)));
                Ok(())
            }
        }
    }
}

/// Leaves word why this rank gives up, for those to which it is not connected. The first word counts.
/// The store has little time for it, and for all that it is asked later.
pub(super) fn report_failure(store: &TcpStore, env: &RankEnv, error: &ConnectError) {
    report_failure_within(PARTING_TIMEOUT, store, env, error);
}

fn report_failure_within(timeout: Duration, store: &TcpStore, env: &RankEnv, error: &ConnectError) {
    let Some(failure) = connect_all::failure_for_peers(env.rank, connect_all::JOB, error) else {
        return;
    };
    // A rank that cannot be notified is no worse off than without it.
    let _ = store.set_timeout(timeout);
    if let Ok(1) = store.add(&key(env, REPORTERS_KEY), 1) {
        let text = serde_json::to_vec(&failure).expect("failures are plain data");
        let _ = store.set(&key(env, FAILURE_KEY), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CollectiveError;
    use bonfire_connect::platform::clock;
    use bonfire_connect::secure::token::JobToken;
    use bonfire_connect::store::TcpStoreServer;

    #[test]
    fn a_store_that_is_lost_ends_the_wait_only_where_nobody_else_can_tell() {
        let token = JobToken::random().unwrap();
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
        let (host, port) = ("127.0.0.1", server.local_addr().port());
        let store = TcpStore::connect(host, port, &token, Duration::from_secs(30)).unwrap();
        let env = super::super::tests::env_of(1, &server, &token);
        let served_by_rank_0 = RankEnv { agent_store: StoreHost::RankZero, ..env.clone() };
        let of_agent = Watch::new(&store, &env);
        let of_rank_0 = Watch::new(&store, &served_by_rank_0);
        let [rank_0, rank_3] = [0, 3].map(|rank| [Rank::new(rank)]);
        of_agent.look(&rank_3).unwrap();
        assert!(of_agent.grace.get().is_none(), "the store is there");
        drop(server);
        let began = clock::now();
        let error = loop {
            if let Err(error) = of_agent.look(&rank_3) {
                break error;
            }
            assert!(clock::since(began) < Duration::from_secs(60), "nothing was seen");
        };
        assert!(clock::since(began) >= GRACE);
        assert!(matches!(error, ConnectError::Store(StoreError::Broken(_))), "{error}");
        of_rank_0.look(&rank_3).unwrap();
        assert!(
            of_rank_0.grace.get().is_none(),
            "rank 0 is connected, and may have ended its store"
        );
        of_rank_0.look(&rank_0).unwrap();
        assert!(of_rank_0.grace.get().is_some());
    }

    #[test]
    fn word_of_a_rank_that_gave_up_ends_the_wait() {
        let token = JobToken::random().unwrap();
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
        let (host, port) = ("127.0.0.1", server.local_addr().port());
        let store = TcpStore::connect(host, port, &token, Duration::from_secs(30)).unwrap();
        let env = super::super::tests::env_of(1, &server, &token);
        let watch = Watch::new(&store, &env);
        let failed = |rank: u32| {
            let rank = Rank::new(rank);
            let cause = "it fell".to_owned();
            ConnectError::GroupFailed(Box::new(CollectiveError::PeerFailed { rank, cause }))
        };
        watch.look_for_failure().unwrap();
        let timeout = Duration::from_secs(60);
        report_failure_within(timeout, &store, &env, &failed(7));
        report_failure_within(timeout, &store, &env, &failed(8));
        let began = clock::now();
        let error = loop {
            if let Err(error) = watch.look(&[Rank::new(3)]) {
                break error;
            }
            assert!(clock::since(began) < Duration::from_secs(60), "nothing was seen");
        };
        let text = error.to_string();
        assert!(text.ends_with("rank 7 failed: it fell"), "the first word counts: {text}");
    }
}
