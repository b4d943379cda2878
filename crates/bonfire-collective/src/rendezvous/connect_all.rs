//! Connections between every two ranks: to the lower ones this rank connects, the higher ones it
//! accepts, both at once. So no circle of waiting can arise, however few connections a listener has room
//! for, and a rank that is lost keeps no two others apart.

mod acceptor;
mod dialer;
mod hello;
mod listeners;
mod pending;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bonfire_plan::Rank;

use super::address::Address;
use super::{ConnectError, Deadline};
use crate::health::control::{Early, Reading};
use crate::health::failure::Failure;
use crate::options::transport_kind::TransportKind;
use bonfire_connect::connections::Tls;
use bonfire_connect::platform::thread;
use bonfire_connect::secure::stream::Stream;
use bonfire_connect::secure::tls::Identity;
use bonfire_connect::secure::token::JobToken;

pub(crate) use listeners::Listeners;

use acceptor::Acceptor;
use dialer::{DIALERS_MAX, Dialer};
use hello::{Hello, Purpose};
use pending::PendingConnections;

/// A stranger who connects and says nothing, or says it slowly, is heard for this long at most.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a connection that was refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Asked between two waits, with the ranks that are not connected; its error ends the attempt.
pub(super) type Guard<'a> = &'a dyn Fn(&[Rank]) -> Result<(), ConnectError>;

/// The number of the group of all ranks.
pub(super) const JOB: u32 = 0;

#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) control: Vec<Early>,
    /// Of each peer with the streams' numbers, in their order.
    pub(super) data: BTreeMap<Rank, Vec<(u8, Stream)>>,
}

pub(super) struct ConnectAll<'a> {
    pub(super) me: Rank,
    /// Number of the group: a late connection of another group is not one of this.
    pub(super) group: u32,
    pub(super) token: &'a JobToken,
    pub(super) addresses: &'a [Address],
    pub(super) kinds: &'a [Option<TransportKind>],
    pub(super) streams: u8,
    pub(super) tls: Tls,
    /// To encrypt them; there if any may be.
    pub(super) identity: Option<&'a Identity>,
}

impl ConnectAll<'_> {
    pub(super) fn connect(
        &self,
        listeners: Listeners,
        deadline: Deadline,
        guard: Guard<'_>,
    ) -> Result<Connections, ConnectError> {
        let lower = self.hellos(|peer| peer < self.me);
        let dialer = Dialer::new(self, &lower, deadline);
        let acceptor = Acceptor::new(self);
        let (dialer, acceptor) = (&dialer, &acceptor);
        thread::scope(|scope| {
            let _ending = Ending { dialer, acceptor };
            let mut dialers = Vec::new();
            for _ in 0..lower.len().min(DIALERS_MAX) {
                match scope.spawn(move || dialer.work()) {
                    Ok(thread) => dialers.push(thread),
                    Err(source) if dialers.is_empty() => return Err(ConnectError::Thread(source)),
                    // Fewer take longer.
                    Err(_) => break,
                }
            }
            let mut pending = PendingConnections::new(self, dialer, acceptor, dialers);
            let gathered = pending.gather(scope, &listeners, deadline, guard);
            pending.broadcast_outcome(&gathered);
            gathered.map(|()| pending.there)
        })
    }

    fn hellos(&self, is_one: impl Fn(Rank) -> bool) -> Vec<Hello> {
        let ranks = (0..self.addresses.len() as u32).map(Rank::new);
        ranks
            .filter(|peer| is_one(*peer))
            .flat_map(|rank| {
                let purposes = self.purposes(rank);
                purposes.map(move |purpose| Hello { rank, purpose })
            })
            .collect()
    }

    fn purposes(&self, peer: Rank) -> impl Iterator<Item = Purpose> + use<> {
        let streams = match self.kinds[peer.index()] {
            Some(TransportKind::Tcp) => self.streams,
            // Nothing between two processes of one host treats flows one by one.
            Some(TransportKind::Unix) => 1,
            _ => 0,
        };
        std::iter::once(Purpose::Control).chain((0..streams).map(Purpose::Data))
    }

    /// Whether this is a connection that a higher rank makes to this one.
    fn is_dialer(&self, hello: Hello) -> bool {
        let is_higher = hello.rank > self.me && hello.rank.index() < self.addresses.len();
        is_higher && self.purposes(hello.rank).any(|purpose| purpose == hello.purpose)
    }

    /// Whether a connection to a lower rank goes over a Unix-domain socket.
    fn is_over_unix(&self, hello: Hello) -> bool {
        let is_unix = self.kinds[hello.rank.index()] == Some(TransportKind::Unix);
        self.is_same_host(hello.rank) && (hello.purpose == Purpose::Control || is_unix)
    }

    fn is_same_host(&self, peer: Rank) -> bool {
        self.addresses[peer.index()].host == self.addresses[self.me.index()].host
    }

    fn reading(&self, peer: Rank) -> Reading {
        match self.kinds[peer.index()] {
            Some(TransportKind::Shm) => Reading::Later,
            _ => Reading::Now,
        }
    }

    fn is_sealed(&self, peer: Rank) -> bool {
        match self.tls {
            Tls::Off => false,
            Tls::Hosts => !self.is_same_host(peer),
            Tls::All => true,
        }
    }
}

/// Why a connection within a host is dropped that comes from another user. A token would keep that one
/// out as well, but a job may have none, and memory is handed over on these connections.
fn foreign() -> io::Error {
    let text = "another user's process is at the other end";
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Ends the threads of a scope, also after an error or a panic: the scope waits for them.
struct Ending<'scope, 'a> {
    dialer: &'scope Dialer<'a>,
    acceptor: &'scope Acceptor<'a>,
}

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        // Those who have proved nothing keep nobody waiting.
        self.acceptor.lobby.clear();
        self.dialer.stop();
    }
}

/// What a rank says that cannot join a group, if that is anybody's fault.
pub(super) fn failure_for_peers(me: Rank, group: u32, error: &ConnectError) -> Option<Failure> {
    let culprit = match error {
        ConnectError::GroupFailed(failure) => return failure.as_failure(),
        ConnectError::Unreachable { theirs, .. } => *theirs,
        ConnectError::Missing { missing, .. } => *missing.first()?,
        // The store of a job is on the host of its rank 0, in a process of its own or in that one's.
        ConnectError::Store(_) if group == JOB => Rank::new(0),
        _ => return None,
    };
    Some(Failure::Peer { rank: culprit, cause: format!("rank {me} gave up joining: {error}") })
}

impl Connections {
    fn add(&mut self, hello: Hello, stream: Stream, reading: Reading) -> io::Result<()> {
        match hello.purpose {
            Purpose::Control => self.control.push(Early::new(hello.rank, stream, reading)?),
            Purpose::Data(number) => {
                let streams = self.data.entry(hello.rank).or_default();
                streams.push((number, stream));
                streams.sort_by_key(|(number, _)| *number);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
