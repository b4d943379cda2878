//! A look at the store by ranks that need it no more but are not all connected yet.
//!
//! Whoever serves it is on the host of rank 0, or is rank 0. If it is lost, some rank may have lost it
//! before it knew where the others are, and nobody will ever hear of that one: the ranks that wait for
//! it must not take it for the one that failed.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use super::{ConnectError, Deadline};
use crate::environment::StoreHost;
use crate::store::{StoreError, TcpStore};

/// How long the ranks have to connect without the store. A job that comes together in this time does
/// not need it, and who is connected to rank 0 hears by itself what became of it.
const GRACE: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Watch<'a> {
    store: &'a TcpStore,
    host: StoreHost,
    /// Begins when the store is seen to be lost.
    grace: Cell<Option<Deadline>>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(store: &'a TcpStore, host: StoreHost) -> Self {
        Self {
            store,
            host,
            grace: Cell::new(None),
        }
    }

    /// An error if the store has been lost for a while and these ranks are still missing.
    pub(super) fn look(&self, missing: &[Rank]) -> Result<(), ConnectError> {
        // Rank 0 serves until all are connected to it, and tells those that are how it fares.
        let is_needed = self.host == StoreHost::Agent || missing.contains(&Rank::new(0));
        if !is_needed || !self.store.is_lost() {
            return Ok(());
        }
        let grace = self.grace.get().unwrap_or_else(|| Deadline::after(GRACE));
        self.grace.set(Some(grace));
        match grace.left().is_zero() {
            true => Err(StoreError::Broken(io::ErrorKind::ConnectionAborted.into()).into()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock;
    use crate::store::TcpStoreServer;
    use crate::token::JobToken;

    #[test]
    fn a_store_that_is_lost_ends_the_wait_only_where_nobody_else_can_tell() {
        let token = JobToken::random().unwrap();
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
        let (host, port) = ("127.0.0.1", server.local_addr().port());
        let store = TcpStore::connect(host, port, &token, Duration::from_secs(30)).unwrap();
        let of_agent = Watch::new(&store, StoreHost::Agent);
        let of_rank_0 = Watch::new(&store, StoreHost::RankZero);
        let [rank_0, rank_3] = [0, 3].map(|rank| [Rank::new(rank)]);
        of_agent.look(&rank_3).unwrap();
        assert!(of_agent.grace.get().is_none(), "the store is there");
        drop(server);
        let began = clock::now();
        let error = loop {
            if let Err(error) = of_agent.look(&rank_3) {
                break error;
            }
            assert!(
                clock::since(began) < Duration::from_secs(60),
                "nothing was seen"
            );
        };
        assert!(clock::since(began) >= GRACE);
        assert!(
            matches!(error, ConnectError::Store(StoreError::Broken(_))),
            "{error}"
        );
        of_rank_0.look(&rank_3).unwrap();
        assert!(
            of_rank_0.grace.get().is_none(),
            "rank 0 is connected, and may have ended its store"
        );
        of_rank_0.look(&rank_0).unwrap();
        assert!(of_rank_0.grace.get().is_some());
    }
}
