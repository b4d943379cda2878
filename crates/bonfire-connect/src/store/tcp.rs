//! The store over TCP: one server, in the launcher or in rank 0, and a client in every rank.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::place::{Clients, LOOKUP_PAUSE, await_addresses, check_name, is_address, look_up};
use super::protocol::{Reply, Request};
use super::{LongWait, MemoryStore, Store, StoreError, check_lengths};
use crate::connections::Tls;
use crate::platform::clock;
use crate::platform::net::{
    Handle, TcpListener, TcpStream, await_news, connect, is_exhaustion, listen,
};
use crate::platform::sync::{Mutex, MutexGuard};
use crate::platform::thread::{self, JoinHandle};
use crate::secure::greeting::{Secrecy, greet};
use crate::secure::handshake::{HandshakeError, Role};
use crate::secure::lobby::Lobby;
use crate::secure::stream::Stream;
use crate::secure::tls::Identity;
use crate::secure::token::JobToken;

/// Connections served at once: every rank of a large job, and a bound on strangers.
const CONNECTIONS_MAX: usize = 4096;

/// A connection that does not prove the token in this time is closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Pause between two lines about too few descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(10);

/// Longest time the server holds one `get`; clients ask again until their own timeout.
const GET_SLICE: Duration = Duration::from_secs(2);

/// A server that answers nothing for this long, beyond what it was asked to wait, is lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two attempts to reach a server that is not up yet.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Serves a store on its own threads until dropped.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    tables: Arc<MemoryStore>,
    stop: Arc<AtomicBool>,
    /// Of what the thread listens on.
    handle: Handle,
    acceptor: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Serves at `address` (port 0: any free one) every client that proves the token, without TLS.
    pub fn bind(address: SocketAddr, token: &JobToken) -> Result<Self, StoreError> {
        Self::bind_with(address, token, Tls::Off)
    }

    /// Serves on the first of the addresses of `host` that is this host's. The name is looked up until
    /// `timeout`. A host's name may mean its own loopback address on that host; clients on other hosts
    /// would wait for it in vain.
    pub fn bind_host(
        host: &str,
        port: u16,
        token: &JobToken,
        tls: Tls,
        clients: Clients,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let may_be_loopback =
            clients == Clients::OneHost || host == "localhost" || is_address(host);
        let mut refusal = None;
        for candidate in await_addresses(host, port, timeout)? {
            if candidate.ip().is_loopback() && !may_be_loopback {
                let (host, ip) = (host.to_owned(), candidate.ip());
                refusal.get_or_insert(StoreError::LoopbackMaster { host, ip });
                continue;
            }
            match Self::bind_with(candidate, token, tls) {
                Err(StoreError::Bind { address, source })
                    if source.kind() == io::ErrorKind::AddrNotAvailable =>
                {
                    refusal = Some(StoreError::NotMyAddress { address });
                }
                bound => return bound,
            }
        }
        Err(refusal.expect("a name with addresses was served or refused"))
    }

    /// As [`bind`](Self::bind), with TLS if that is to cover a store at this address.
    pub fn bind_with(address: SocketAddr, token: &JobToken, tls: Tls) -> Result<Self, StoreError> {
        let listener = listen(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => StoreError::AddressInUse {
                address: address.to_string(),
            },
            _ => StoreError::Bind {
                address: address.to_string(),
                source,
            },
        })?;
        let address = listener.local_addr()?;
        let handle = Handle::of(&listener)?;
        let identity = identity(tls, address.ip())?;
        let stop = Arc::new(AtomicBool::new(false));
        let tables = Arc::new(MemoryStore::new());
        let (token, stop_there, tables_there) =
            (token.clone(), Arc::clone(&stop), Arc::clone(&tables));
        let acceptor = thread::spawn("bonfire-store", move || {
            let secrecy = Secrecy::of(identity.as_ref());
            accept(&listener, &token, secrecy, &tables_there, &stop_there);
        })?;
        Ok(Self {
            address,
            tables,
            stop,
            handle,
            acceptor: Some(acceptor),
        })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub fn store(&self) -> &MemoryStore {
        &self.tables
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Ends the blocking accept; the thread sees `stop` and returns.
        self.handle.hang_up();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// The key for connections with a store at this address, if they are encrypted.
fn identity(tls: Tls, ip: IpAddr) -> Result<Option<Identity>, StoreError> {
    let identity = tls.cover_store(ip).then(Identity::new).transpose();
    identity.map_err(StoreError::Identity)
}

fn accept(
    listener: &TcpListener,
    token: &JobToken,
    secrecy: Secrecy<'_>,
    tables: &MemoryStore,
    stop: &AtomicBool,
) {
    let open: Mutex<BTreeMap<u64, TcpStream>> = Mutex::new(BTreeMap::new());
    let open = &open;
    let lobby = &Lobby::new();
    let mut connections = 0_u64;
    let mut shortage = Shortage::default();
    thread::scope(|scope| {
        loop {
            let accepted = listener.accept().and_then(|(stream, _)| {
                let (handle, place) = (stream.try_clone()?, lobby.enter(&stream)?);
                Ok((stream, handle, place))
            });
            if stop.load(Ordering::Acquire) {
                break;
            }
            let (stream, handle, place) = match accepted {
                Ok(accepted) => accepted,
                // A connection that broke before it was taken, or no descriptor left for one.
                Err(error) => {
                    if is_exhaustion(&error) {
                        shortage.warn(&error, connections);
                    }
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
            };
            let id = connections;
            connections += 1;
            {
                let mut open = open.lock();
                if open.len() >= CONNECTIONS_MAX {
                    lobby.leave(place);
                    continue;
                }
                open.insert(id, handle);
            }
            let started = scope.spawn(move || {
                let proven = prove(stream, token, secrecy);
                lobby.leave(place);
                // A broken connection concerns its client only, who sees it too.
                let _ = proven.map(|stream| serve(stream, tables, stop));
                open.lock().remove(&id);
            });
            if started.is_err() {
                // No thread is left for it. A client of the job tries again.
                lobby.leave(place);
                let mut open = open.lock();
                open.remove(&id);
            }
        }
        lobby.clear();
        // No more requests: this ends the threads that wait for one. The answer to the last request
        // still goes out, for what it asked is done, and perhaps is why the server stops.
        for stream in open.lock().values() {
            let _ = stream.shutdown(Shutdown::Read);
        }
    });
}

/// Says from time to time that ranks cannot be served: all that they would see is silence.
#[derive(Debug, Default)]
struct Shortage {
    told: Option<Instant>,
}

impl Shortage {
    fn warn(&mut self, error: &io::Error, connections: u64) {
        if self
            .told
            .is_none_or(|told| clock::since(told) >= SHORTAGE_PAUSE)
        {
            self.told = Some(clock::now());
            tracing::warn!(
                target: "bonfire",
                "the store takes no more connections after {connections} ({error}): ranks wait; raise \
                 `ulimit -n` where it is served"
            );
        }
    }
}

fn prove(
    stream: TcpStream,
    token: &JobToken,
    secrecy: Secrecy<'_>,
) -> Result<Stream, HandshakeError> {
    let stream = Stream::Tcp(stream);
    let stream = greet(stream, Role::Acceptor, token, secrecy, HANDSHAKE_TIMEOUT)?;
    stream.set_read_timeout(None)?;
    // A client that does not take its answer must not hold the server up when it stops.
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    Ok(stream)
}

fn serve(mut stream: Stream, tables: &MemoryStore, stop: &AtomicBool) -> io::Result<()> {
    while let Some(request) = Request::read(&mut stream)? {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let reply = match request {
            Request::Set { key, value } => tables.set(&key, &value).map(|()| Reply::Done(0)),
            Request::Add { key, amount } => tables.add(&key, amount).map(Reply::Done),
            Request::Get { key, timeout_ms } => {
                let slice = GET_SLICE.min(Duration::from_millis(timeout_ms));
                match tables.get(&key, slice) {
                    Err(StoreError::Timeout { .. }) => Ok(Reply::TimedOut),
                    other => other.map(Reply::Value),
                }
            }
        };
        let Ok(reply) = reply else { break };
        reply.write(&mut stream)?;
    }
    Ok(())
}

#[derive(Debug)]
pub struct TcpStore {
    line: Mutex<Line>,
    /// To look whether something has come.
    handle: Handle,
    local: SocketAddr,
}

/// A connection on which one request at a time is answered.
#[derive(Debug)]
struct Line {
    stream: Stream,
    /// Whether the last request has no answer yet.
    is_owed: bool,
}

impl Line {
    fn send(&mut self, request: &Request) -> io::Result<()> {
        request.write(&mut self.stream)?;
        self.is_owed = true;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Reply> {
        let reply = Reply::read(&mut self.stream)?;
        self.is_owed = false;
        Ok(reply)
    }
}

impl TcpStore {
    /// Connects to `host:port` without TLS, trying again until `timeout` while nobody answers there.
    pub fn connect(
        host: &str,
        port: u16,
        token: &JobToken,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        Self::connect_with(host, port, token, Tls::Off, timeout)
    }

    /// As [`connect`](Self::connect), with the TLS setting of the server.
    pub fn connect_with(
        host: &str,
        port: u16,
        token: &JobToken,
        tls: Tls,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        check_name(host)?;
        let started = clock::now();
        let address = format!("{host}:{port}");
        let mut wait = LongWait::begin();
        loop {
            let looked_up = look_up(host, port);
            let pause = match looked_up {
                Ok(_) => RETRY_PAUSE,
                Err(_) => LOOKUP_PAUSE,
            };
            let source = match looked_up.and_then(|found| try_connect(&found, timeout)) {
                Ok(stream) => match say_hello(stream, token, tls)? {
                    Ok((stream, local)) => {
                        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
                        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
                        stream.notice_silence()?;
                        return Ok(Self {
                            handle: Handle::of(&stream)?,
                            line: Mutex::new(Line {
                                stream,
                                is_owed: false,
                            }),
                            local,
                        });
                    }
                    // A server with another token hangs up as soon as it sees our proof, which may
                    // reach us as a closed connection or as its own, wrong, proof.
                    Err(HandshakeError::WrongToken) => {
                        return Err(StoreError::WrongToken { address });
                    }
                    Err(HandshakeError::TlsHereOnly) => {
                        return Err(differs(address, ["TLS", "no TLS"]));
                    }
                    Err(HandshakeError::TlsThereOnly) => {
                        return Err(differs(address, ["no TLS", "TLS"]));
                    }
                    Err(HandshakeError::Io(source)) => source,
                    Err(HandshakeError::Random(source)) => source,
                },
                Err(source) => source,
            };
            let waited = clock::since(started);
            if waited + RETRY_PAUSE >= timeout {
                return Err(StoreError::Unreachable {
                    address,
                    waited,
                    source,
                });
            }
            wait.log(|| format!("the store at {address}, on the host of rank 0 ({source})"));
            thread::sleep(pause);
        }
    }

    /// The address of this end: the interface through which the store's host is reached.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the last call asked for, if it has come and was set, and asks for `key` anew. Waits for
    /// nothing: an answer that has not come is taken by a later call. An error if the server has ended
    /// the connection, or fallen silent.
    pub fn peek(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        check_lengths(key, &[])?;
        let mut line = self.line();
        let has_news = !await_news(&[&self.handle], Duration::ZERO).is_empty();
        if has_news && let Reply::Value(value) = line.receive()? {
            return Ok(Some(value));
        }
        if !line.is_owed {
            line.send(&Request::Get {
                key: key.to_owned(),
                timeout_ms: 0,
            })?;
        }
        Ok(None)
    }

    /// From now on the server has so long to answer a request.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.line().stream.set_read_timeout(Some(timeout))
    }

    fn ask(&self, request: &Request) -> Result<Reply, StoreError> {
        let mut line = self.line();
        if line.is_owed {
            line.receive()?;
        }
        line.send(request)?;
        Ok(line.receive()?)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }
}

/// The connection as it is to be used, and the address of this end.
fn say_hello(
    stream: TcpStream,
    token: &JobToken,
    tls: Tls,
) -> Result<Result<(Stream, SocketAddr), HandshakeError>, StoreError> {
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let identity = identity(tls, peer.ip())?;
    // Longer than the server waits for us, which may have others to serve first.
    let timeout = HANDSHAKE_TIMEOUT * 2;
    let secrecy = Secrecy::of(identity.as_ref());
    let stream = Stream::Tcp(stream);
    let greeted = greet(stream, Role::Connector, token, secrecy, timeout);
    Ok(greeted.map(|stream| (stream, local)))
}

fn differs(address: String, [here, there]: [&'static str; 2]) -> StoreError {
    StoreError::TlsDiffers {
        address,
        here,
        there,
    }
}

/// The first of a host's addresses that answers.
fn try_connect(addresses: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match connect(address, timeout.min(HANDSHAKE_TIMEOUT)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_lengths(key, value)?;
        let request = Request::Set {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        self.ask(&request).map(|_| ())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        check_lengths(key, &[])?;
        let started = clock::now();
        loop {
            let left = timeout.saturating_sub(clock::since(started));
            let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let request = Request::Get {
                key: key.to_owned(),
                timeout_ms,
            };
            if let Reply::Value(value) = self.ask(&request)? {
                return Ok(value);
            }
            let waited = clock::since(started);
            if waited >= timeout {
                return Err(StoreError::Timeout {
                    key: key.to_owned(),
                    waited,
                });
            }
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        check_lengths(key, &[])?;
        match self.ask(&Request::Add {
            key: key.to_owned(),
            amount,
        })? {
            Reply::Done(sum) => Ok(sum),
            other => Err(StoreError::Broken(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the store answered an addition with {other:?}"),
            ))),
        }
    }
}
