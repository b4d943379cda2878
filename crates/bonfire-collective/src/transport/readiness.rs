//! Which of a rank's sockets have news.

use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use crate::platform::net;
use crate::stream::Stream;

/// The sockets of one rank.
#[derive(Debug)]
pub(super) struct Readiness {
    edges: net::Edges,
}

/// From whom something has come.
pub(super) struct News(net::News);

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        let edges = net::Edges::new()?;
        Ok(Self { edges })
    }

    /// From now on, what comes from `peer` is news.
    pub(super) fn add(&self, peer: Rank, stream: &Stream) -> io::Result<()> {
        self.edges.add(u64::from(peer.get()), stream)
    }

    /// Sleeps until there is news or `nap` is over.
    pub(super) fn sleep(&self, nap: Duration) -> News {
        News(self.edges.sleep(nap))
    }

    /// Sleeps until there is news, `writer` takes more bytes, or `nap` is over.
    pub(super) fn sleep_for_room(&self, writer: &Stream, nap: Duration) -> News {
        News(self.edges.sleep_for_room(writer, nap))
    }
}

impl News {
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.0.numbers().map(|number| Rank::new(number as u32))
    }
}
