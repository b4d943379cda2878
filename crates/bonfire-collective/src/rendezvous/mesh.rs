//! Connections between every two ranks: to the lower ones this rank connects, the higher ones it
//! accepts, both at once. So no circle of waiting can arise, however few connections a listener has room
//! for, and a rank that is lost keeps no two others apart.

mod calls;
mod hello;
mod listeners;
mod reception;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};

use super::address::Address;
use super::{ConnectError, Deadline};
use crate::accounts::Account;
use crate::control::{Early, Hearing};
use crate::error::Failure;
use crate::platform::net::await_news;
use crate::platform::thread;
use crate::stream::Stream;
use crate::tls::{Identity, Tls};
use crate::token::JobToken;
use crate::transport::TransportKind;

pub(crate) use listeners::Listeners;

use calls::{CALLERS_MAX, Calls};
use hello::{Hello, Purpose};
use listeners::is_exhaustion;
use reception::Reception;

/// A stranger who connects and says nothing, or says it slowly, is heard for this long at most.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a connection that was refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Longest sleep while waiting for a connection.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);

/// Longest sleep while connections are proving themselves.
const TALK_SLICE: Duration = Duration::from_millis(2);

/// How long a rank waits for others before it says so to those that are there, and then says whether
/// that has changed.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Longest time between two looks at the connections that are there, and at the guard.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// Asked between two waits, with the ranks that are not connected; its error ends the attempt.
pub(super) type Guard<'a> = &'a dyn Fn(&[Rank]) -> Result<(), ConnectError>;

/// The number of the group of all ranks.
const JOB: u32 = 0;

/// The connections of one rank.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) control: Vec<Early>,
    /// Of each peer with the streams' numbers, in their order.
    pub(super) data: BTreeMap<Rank, Vec<(u8, Stream)>>,
}

/// What is needed to connect.
pub(super) struct Mesh<'a> {
    pub(super) me: Rank,
    /// Number of the group: a late connection of another group is not one of this.
    pub(super) group: u32,
    pub(super) token: &'a JobToken,
    pub(super) addresses: &'a [Address],
    pub(super) kinds: &'a [Option<TransportKind>],
    /// Streams of each link over TCP.
    pub(super) streams: u8,
    /// Which connections are encrypted.
    pub(super) tls: Tls,
    /// To encrypt them; there if any may be.
    pub(super) identity: Option<&'a Identity>,
}

impl Mesh<'_> {
    /// Connects to everybody.
    pub(super) fn connect(
        &self,
        listeners: Listeners,
        deadline: Deadline,
        guard: Guard<'_>,
    ) -> Result<Connections, ConnectError> {
        let lower = self.hellos(|peer| peer < self.me);
        let calls = Calls::new(self, &lower, deadline);
        let reception = Reception::new(self);
        let (calls, reception) = (&calls, &reception);
        thread::scope(|scope| {
            let callers = lower.len().min(CALLERS_MAX);
            let callers = (0..callers).map(|_| scope.spawn(move || calls.work()));
            let mut gathering = Gathering {
                mesh: self,
                calls,
                reception,
                expected: self.hellos(|peer| peer != self.me),
                there: Connections::default(),
                told: Vec::new(),
                talking: callers.collect(),
            };
            let gathered = gathering.gather(scope, &listeners, deadline, guard);
            gathering.say_how_it_went(&gathered);
            let gathered = gathered.map(|()| gathering.there);
            // Those who have proved nothing keep nobody waiting.
            reception.lobby.clear();
            calls.stop();
            gathered
        })
    }

    /// All connections with these peers.
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
            // Nothing between two processes of one host deals with flows one by one.
            Some(TransportKind::Unix) => 1,
            _ => 0,
        };
        std::iter::once(Purpose::Control).chain((0..streams).map(Purpose::Data))
    }

    /// Whether this is a connection that a higher rank makes to this one.
    fn is_caller(&self, hello: Hello) -> bool {
        let is_higher = hello.rank > self.me && hello.rank.index() < self.addresses.len();
        is_higher
            && self
                .purposes(hello.rank)
                .any(|purpose| purpose == hello.purpose)
    }

    /// Whether a connection to a lower rank goes over a Unix-domain socket.
    fn is_over_unix(&self, hello: Hello) -> bool {
        let is_unix = self.kinds[hello.rank.index()] == Some(TransportKind::Unix);
        self.is_same_host(hello.rank) && (hello.purpose == Purpose::Control || is_unix)
    }

    fn is_same_host(&self, peer: Rank) -> bool {
        self.addresses[peer.index()].host == self.addresses[self.me.index()].host
    }

    fn hearing(&self, peer: Rank) -> Hearing {
        match self.kinds[peer.index()] {
            Some(TransportKind::Shm) => Hearing::Unheard,
            _ => Hearing::Heard,
        }
    }

    /// What the others are told when this rank gives up, if that is anybody's fault.
    fn failure(&self, error: &ConnectError) -> Option<Failure> {
        let culprit = match error {
            ConnectError::GroupFailed(failure) => return failure.as_failure(),
            ConnectError::Unreachable { theirs, .. } => *theirs,
            ConnectError::Missing { missing, .. } => *missing.first()?,
            // The store of a job is on the host of its rank 0, in a process of its own or in that one's.
            ConnectError::Store(_) if self.group == JOB => Rank::new(0),
            _ => return None,
        };
        Some(Failure::Peer {
            rank: culprit,
            cause: format!("rank {} gave up joining: {error}", self.me),
        })
    }

    /// Whether TCP connections to a rank are encrypted.
    fn is_sealed(&self, peer: Rank) -> bool {
        match self.tls {
            Tls::Off => false,
            Tls::Hosts => !self.is_same_host(peer),
            Tls::All => true,
        }
    }
}

/// Connections coming together.
struct Gathering<'scope, 'a> {
    mesh: &'a Mesh<'a>,
    calls: &'scope Calls<'a>,
    reception: &'scope Reception<'a>,
    /// What is not there yet.
    expected: Vec<Hello>,
    there: Connections,
    /// For whom those that are there were told that this rank waits.
    told: Vec<Rank>,
    /// Those that make connections or hear one. Each connection proves itself on a thread of its own, so
    /// that none that is silent or slow keeps another waiting.
    talking: Vec<thread::ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Gathering<'scope, '_> {
    /// Until everybody expected is there.
    fn gather(
        &mut self,
        scope: &thread::Scope<'scope, '_>,
        listeners: &Listeners,
        deadline: Deadline,
        guard: Guard<'_>,
    ) -> Result<(), ConnectError> {
        let mut tell = Deadline::after(TELL_AFTER);
        let mut look = Deadline::after(Duration::ZERO);
        while !self.expected.is_empty() {
            if look.left().is_zero() {
                self.hear()?;
                guard(&self.missing())?;
                look = Deadline::after(LOOK_AFTER);
            }
            if deadline.left().is_zero() {
                return Err(self.explain(deadline));
            }
            if tell.left().is_zero() {
                self.say_who_is_awaited();
                tell = Deadline::after(TELL_AFTER);
            }
            self.talking.retain(|thread| !thread.is_finished());
            let patience = match self.talking.is_empty() {
                true => ACCEPT_SLICE,
                false => TALK_SLICE,
            };
            match listeners.accept(patience) {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    let reception = self.reception;
                    if let Ok(place) = reception.lobby.enter(&stream) {
                        let thread = scope.spawn(move || reception.receive(stream, place));
                        self.talking.push(thread);
                    }
                }
                // Strangers have taken all descriptors; the lobby gives some back.
                Err(source) if is_exhaustion(&source) => thread::sleep(TALK_SLICE),
                Err(source) => {
                    let call = "accept";
                    return Err(ConnectError::System { call, source });
                }
            }
            let mut come = self.reception.take_proven();
            come.extend(self.calls.take_made());
            for (hello, stream) in come {
                // Whoever is there already is dropped without a word.
                if let Some(index) = self.expected.iter().position(|one| *one == hello) {
                    self.expected.swap_remove(index);
                    let system = |source| ConnectError::System {
                        call: "dup",
                        source,
                    };
                    let hearing = self.mesh.hearing(hello.rank);
                    self.there.add(hello, stream, hearing).map_err(system)?;
                }
            }
        }
        Ok(())
    }

    fn missing(&self) -> Vec<Rank> {
        let mut missing: Vec<Rank> = self.expected.iter().map(|hello| hello.rank).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Hears those that are there: one that is lost or has given up need not be waited for.
    fn hear(&mut self) -> Result<(), ConnectError> {
        let control = &mut self.there.control;
        let open = control.iter().enumerate();
        let (places, handles): (Vec<usize>, Vec<_>) = open
            .filter_map(|(place, early)| Some((place, early.handle()?)))
            .unzip();
        for news in await_news(&handles, Duration::ZERO) {
            if let Some(failure) = control[places[news]].hear() {
                return Err(ConnectError::GroupFailed(Box::new(failure.into())));
            }
        }
        Ok(())
    }

    /// Tells the others whom this rank waits for: they may have joined already, and wait for this one.
    fn say_who_is_awaited(&mut self) {
        let missing = self.missing();
        if missing == self.told {
            return;
        }
        let account = Account::of_joining(self.mesh.me, missing.clone());
        for early in &self.there.control {
            early.tell_awaited(&account);
        }
        self.told = missing;
    }

    fn say_how_it_went(&mut self, gathered: &Result<(), ConnectError>) {
        let failure = match gathered {
            Ok(()) if self.told.is_empty() => return,
            Ok(()) => {
                let joined = self.there.control.iter();
                return joined.for_each(Early::tell_joined);
            }
            Err(error) => self.mesh.failure(error),
        };
        if let Some(failure) = failure {
            for early in &self.there.control {
                early.tell_failure(&failure);
            }
        }
    }

    /// Who is not there, at the deadline.
    fn explain(&self, deadline: Deadline) -> ConnectError {
        let mesh = self.mesh;
        let missing = self.missing();
        if let &[theirs] = &missing[..]
            && theirs < mesh.me
        {
            let hello = self.expected[0];
            let address = &mesh.addresses[theirs.index()];
            return ConnectError::Unreachable {
                mine: mesh.me,
                theirs,
                address: match mesh.is_over_unix(hello) {
                    true => format!("Unix socket @{}", address.unix),
                    false => address.tcp.to_string(),
                },
                reason: self.calls.reason(hello),
            };
        }
        ConnectError::Missing {
            missing,
            world_size: WorldSize::new(mesh.addresses.len() as u32)
                .expect("this rank is in the world"),
            waited: deadline.waited(),
        }
    }
}

impl Connections {
    fn add(&mut self, hello: Hello, stream: Stream, hearing: Hearing) -> io::Result<()> {
        match hello.purpose {
            Purpose::Control => self.control.push(Early::new(hello.rank, stream, hearing)?),
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
