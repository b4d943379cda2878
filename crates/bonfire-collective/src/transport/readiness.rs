//! Which of a rank's sockets have news.

use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use bonfire_connect::carrier::Carrier;
use bonfire_connect::platform::net;

#[derive(Debug)]
pub(super) struct Readiness {
    edges: net::Edges,
}

/// A socket among those of a rank: one of the streams of the link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) peer: Rank,
    pub(super) stream: usize,
}

/// Where something has come from.
pub(super) struct News(net::News);

impl Origin {
    pub(super) fn new(peer: Rank, stream: usize) -> Self {
        Self { peer, stream }
    }

    fn number(self) -> u64 {
        u64::from(self.peer.get()) | (self.stream as u64) << 32
    }

    fn of(number: u64) -> Self {
        Self::new(Rank::new(number as u32), (number >> 32) as usize)
    }
}

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        let edges = net::Edges::new()?;
        Ok(Self { edges })
    }

    /// From now on, what comes over `stream`, which is that of `origin`, is news.
    pub(super) fn add(&self, origin: Origin, stream: &Carrier) -> io::Result<()> {
        self.edges.add(origin.number(), stream)
    }

    /// Sleeps until there is news or `nap` is over.
    pub(super) fn sleep(&self, nap: Duration) -> News {
        News(self.edges.sleep(nap))
    }

    /// Sleeps until there is news, one of `writers` takes more bytes, or `nap` is over.
    pub(super) fn sleep_for_room<'a>(
        &'a self,
        writers: impl Iterator<Item = &'a Carrier>,
        nap: Duration,
    ) -> News {
        News(self.edges.sleep_for_room(writers, nap))
    }
}

impl News {
    pub(super) fn origins(&self) -> impl Iterator<Item = Origin> {
        self.0.numbers().map(Origin::of)
    }
}
