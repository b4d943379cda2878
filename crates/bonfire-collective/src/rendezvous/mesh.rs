//! Connections between every two ranks: to the lower ones this rank connects, the higher ones it
//! accepts. No circle of waiting can arise: rank 0 only accepts, rank 1 needs rank 0 only, and so on.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;
use std::time::Duration;

use bonfire_plan::Rank;

use super::address::Address;
use super::{ConnectError, Deadline};
use crate::greeting::{Secrecy, greet};
use crate::handshake::{HandshakeError, Role};
use crate::lobby::{Hurried, Lobby, Place};
use crate::platform::net::{
    Handle, TcpListener, UnixListener, await_news, connect, connect_abstract, listen,
    listen_abstract,
};
use crate::platform::sync::Mutex;
use crate::platform::{random, thread};
use crate::stream::Stream;
use crate::tls::{Identity, Tls};
use crate::token::JobToken;
use crate::transport::TransportKind;

/// A stranger who connects and says nothing, or says it slowly, is heard for this long at most.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a connection that was refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Longest sleep while waiting for a connection.
const ACCEPT_SLICE: Duration = Duration::from_millis(200);

/// Longest sleep while connections are proving themselves.
const TALK_SLICE: Duration = Duration::from_millis(2);

/// Where this rank accepts its peers.
#[derive(Debug)]
pub(crate) struct Listeners {
    unix: UnixListener,
    unix_name: String,
    tcp: TcpListener,
    /// To wait for either.
    handles: [Handle; 2],
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Control,
    /// Frames, or parts of them: the stream of this number.
    Data(u8),
}

/// The first thing said on a proven connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    rank: Rank,
    purpose: Purpose,
}

/// Group, rank, purpose and number of the stream.
const HELLO_BYTES: usize = 10;

/// The connections of one rank.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) control: Vec<(Rank, Stream)>,
    /// Of each peer, in the order of the streams' numbers.
    pub(super) data: BTreeMap<Rank, Vec<Stream>>,
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
    /// Asked between two waits; its error ends the attempt.
    pub(super) guard: &'a dyn Fn() -> Result<(), ConnectError>,
}

impl Listeners {
    /// Listens on the interface with address `interface`, on any port, and on an abstract socket.
    pub(super) fn open(interface: IpAddr) -> Result<(Self, SocketAddr), ConnectError> {
        let system = |call| move |source| ConnectError::System { call, source };
        let mut name = [0; 16];
        random::fill(&mut name).map_err(|error| system("getrandom")(io::Error::other(error)))?;
        let unix_name = format!(
            "bonfire-{}",
            name.map(|byte| format!("{byte:02x}")).concat()
        );
        let unix = listen_abstract(&unix_name).map_err(system("bind"))?;
        let tcp = listen(SocketAddr::new(interface, 0)).map_err(system("bind"))?;
        unix.set_nonblocking(true).map_err(system("fcntl"))?;
        tcp.set_nonblocking(true).map_err(system("fcntl"))?;
        let handles = [
            Handle::of(&unix).map_err(system("dup"))?,
            Handle::of(&tcp).map_err(system("dup"))?,
        ];
        let tcp_address = tcp.local_addr().map_err(system("getsockname"))?;
        Ok((
            Self {
                unix,
                unix_name,
                tcp,
                handles,
            },
            tcp_address,
        ))
    }

    pub(super) fn unix_name(&self) -> &str {
        &self.unix_name
    }

    /// The next connection, or `None` after `patience` without one.
    fn accept(&self, patience: Duration) -> io::Result<Option<Stream>> {
        let [unix, tcp] = &self.handles;
        let _ = await_news(&[unix, tcp], patience);
        match self.unix.accept() {
            Ok((stream, _)) => return Ok(Some(Stream::Unix(stream))),
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        match self.tcp.accept() {
            Ok((stream, _)) => Ok(Some(Stream::Tcp(stream))),
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// Whether the system has no descriptor or memory left for a connection at the moment.
fn is_exhaustion(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(
        errno,
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOBUFS)
    )
}

impl Mesh<'_> {
    pub(super) fn connect(
        &self,
        listeners: Listeners,
        deadline: Deadline,
    ) -> Result<Connections, ConnectError> {
        let mut all = Vec::new();
        let ranks = || (0..self.addresses.len() as u32).map(Rank::new);
        for peer in ranks().filter(|peer| *peer < self.me) {
            for purpose in self.purposes(peer) {
                let stream = self.reach(peer, purpose, deadline)?;
                let rank = peer;
                all.push((Hello { rank, purpose }, stream));
            }
        }
        let mut expected: Vec<Hello> = ranks()
            .filter(|peer| *peer > self.me)
            .flat_map(|rank| {
                self.purposes(rank)
                    .map(move |purpose| Hello { rank, purpose })
            })
            .collect();
        let reception = Reception {
            group: self.group,
            token: self.token,
            secrecy: match (self.tls, self.identity) {
                (Tls::Hosts, Some(identity)) => Secrecy::Either(identity),
                (_, identity) => Secrecy::of(identity),
            },
            lobby: Lobby::new(),
            proven: Mutex::new(Vec::new()),
        };
        thread::scope(|scope| {
            let accepted = self.accept_all(scope, &reception, &listeners, &mut expected, deadline);
            // Those who have proved nothing keep nobody waiting.
            reception.lobby.clear();
            all.extend(accepted?);
            Ok(Connections::sort(all))
        })
    }

    /// Accepts until everybody expected has come. Each connection proves itself on a thread of its
    /// own, so that none that is silent or slow keeps another waiting.
    fn accept_all<'scope>(
        &self,
        scope: &thread::Scope<'scope, '_>,
        reception: &'scope Reception<'_>,
        listeners: &Listeners,
        expected: &mut Vec<Hello>,
        deadline: Deadline,
    ) -> Result<Vec<(Hello, Stream)>, ConnectError> {
        let mut accepted = Vec::with_capacity(expected.len());
        let mut talking: Vec<thread::ScopedJoinHandle<'scope, ()>> = Vec::new();
        while !expected.is_empty() {
            (self.guard)()?;
            if deadline.left().is_zero() {
                let mut missing: Vec<Rank> = expected.iter().map(|hello| hello.rank).collect();
                missing.dedup();
                return Err(ConnectError::Missing {
                    missing,
                    world_size: bonfire_plan::WorldSize::new(self.addresses.len() as u32)
                        .expect("this rank is in the world"),
                    waited: deadline.waited(),
                });
            }
            talking.retain(|thread| !thread.is_finished());
            let patience = match talking.is_empty() {
                true => ACCEPT_SLICE,
                false => TALK_SLICE,
            };
            match listeners.accept(patience) {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    if let Ok(place) = reception.lobby.enter(&stream) {
                        talking.push(scope.spawn(move || reception.receive(stream, place)));
                    }
                }
                // Strangers have taken all descriptors; the lobby gives some back.
                Err(source) if is_exhaustion(&source) => thread::sleep(TALK_SLICE),
                Err(source) => {
                    let call = "accept";
                    return Err(ConnectError::System { call, source });
                }
            }
            for (hello, stream) in reception.take_proven() {
                // Whoever is not expected is dropped without a word.
                let is_expected =
                    |waited: &Hello| *waited == hello && self.is_proper(hello.rank, &stream);
                if let Some(index) = expected.iter().position(is_expected) {
                    expected.swap_remove(index);
                    accepted.push((hello, stream));
                }
            }
        }
        Ok(accepted)
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

    /// Connects to a lower rank, trying again while it is refused.
    fn reach(
        &self,
        peer: Rank,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Stream, ConnectError> {
        let theirs = &self.addresses[peer.index()];
        let same_host = theirs.host == self.addresses[self.me.index()].host;
        let over_unix = same_host
            && (purpose == Purpose::Control
                || self.kinds[peer.index()] == Some(TransportKind::Unix));
        loop {
            (self.guard)()?;
            let tried = if over_unix {
                connect_abstract(&theirs.unix).map(Stream::Unix)
            } else {
                let patience = deadline.left().clamp(RETRY_PAUSE, HANDSHAKE_TIMEOUT);
                connect(&theirs.tcp, patience).map(Stream::Tcp)
            };
            let identity = self.identity.filter(|_| !over_unix && self.is_sealed(peer));
            let said = tried
                .map_err(HandshakeError::Io)
                .and_then(|stream| self.say_hello(stream, Secrecy::of(identity), purpose));
            match said {
                Ok(stream) => return Ok(stream),
                Err(error) if deadline.left() <= RETRY_PAUSE => {
                    return Err(ConnectError::Unreachable {
                        mine: self.me,
                        theirs: peer,
                        address: if over_unix {
                            format!("Unix socket @{}", theirs.unix)
                        } else {
                            theirs.tcp.to_string()
                        },
                        reason: match &error {
                            HandshakeError::Io(source) => source.to_string(),
                            other => other.to_string(),
                        },
                    });
                }
                Err(_) => thread::sleep(RETRY_PAUSE),
            }
        }
    }

    fn say_hello(
        &self,
        stream: Stream,
        secrecy: Secrecy<'_>,
        purpose: Purpose,
    ) -> Result<Stream, HandshakeError> {
        // The acceptor may be busy with the ranks before us, so this end waits longer than it does.
        let patience = HANDSHAKE_TIMEOUT * 4;
        let mut stream = greet(stream, Role::Connector, self.token, secrecy, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(None)?;
        let mut hello = [0; HELLO_BYTES];
        hello[..4].copy_from_slice(&self.group.to_le_bytes());
        hello[4..8].copy_from_slice(&self.me.get().to_le_bytes());
        [hello[8], hello[9]] = match purpose {
            Purpose::Control => [1, 0],
            Purpose::Data(stream) => [2, stream],
        };
        stream.write_all(&hello)?;
        Ok(stream)
    }

    /// Whether TCP connections to a rank are encrypted.
    fn is_sealed(&self, peer: Rank) -> bool {
        match self.tls {
            Tls::Off => false,
            Tls::Hosts => self.addresses[peer.index()].host != self.addresses[self.me.index()].host,
            Tls::All => true,
        }
    }

    /// Whether a connection is what it must be for a rank. An acceptor finds out after it has begun.
    fn is_proper(&self, peer: Rank, stream: &Stream) -> bool {
        match stream {
            Stream::Unix(_) => true,
            Stream::Tcp(_) => !self.is_sealed(peer),
            Stream::Tls(_) => self.is_sealed(peer),
        }
    }
}

/// Where connections prove themselves.
struct Reception<'a> {
    group: u32,
    token: &'a JobToken,
    /// Of connections over TCP.
    secrecy: Secrecy<'a>,
    lobby: Lobby,
    /// Those that have, with what they say they are.
    proven: Mutex<Vec<(Hello, Stream)>>,
}

impl Reception<'_> {
    /// Hears one connection; whoever does not prove the token is dropped without a word.
    fn receive(&self, stream: Stream, place: Place) {
        let heard = self.receive_hello(stream);
        self.lobby.leave(place);
        if let Ok(heard) = heard {
            let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
            proven.push(heard);
        }
    }

    fn take_proven(&self) -> Vec<(Hello, Stream)> {
        std::mem::take(&mut self.proven.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn receive_hello(&self, stream: Stream) -> Result<(Hello, Stream), HandshakeError> {
        stream.set_blocking()?;
        let secrecy = match stream {
            Stream::Unix(_) => Secrecy::Plain,
            Stream::Tcp(_) | Stream::Tls(_) => self.secrecy,
        };
        let mut stream = greet(
            stream,
            Role::Acceptor,
            self.token,
            secrecy,
            HANDSHAKE_TIMEOUT,
        )?;
        let mut hello = [0; HELLO_BYTES];
        Hurried::new(&mut stream, HANDSHAKE_TIMEOUT).read_exact(&mut hello)?;
        stream.set_write_timeout(None)?;
        let number = |at: usize| {
            let bytes = hello[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes)
        };
        let (group, rank) = (number(0), number(4));
        let purpose = match hello[8] {
            1 if group == self.group => Purpose::Control,
            2 if group == self.group => Purpose::Data(hello[9]),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        };
        let rank = Rank::new(rank);
        Ok((Hello { rank, purpose }, stream))
    }
}

impl Connections {
    /// Of connections in any order.
    fn sort(mut all: Vec<(Hello, Stream)>) -> Self {
        all.sort_by_key(|(hello, _)| match hello.purpose {
            Purpose::Control => 0,
            Purpose::Data(stream) => stream,
        });
        let mut connections = Self::default();
        for (Hello { rank, purpose }, stream) in all {
            match purpose {
                Purpose::Control => connections.control.push((rank, stream)),
                Purpose::Data(_) => connections.data.entry(rank).or_default().push(stream),
            }
        }
        connections
    }
}
