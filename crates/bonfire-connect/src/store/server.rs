//! The server of the store over TCP, in the launcher or in rank 0.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::{HANDSHAKE_TIMEOUT, identity};
use super::place::{Clients, await_addresses, is_address};
use super::protocol::{Reply, Request};
use super::{MemoryStore, Store, StoreError};
use crate::connections::Tls;
use crate::platform::clock;
use crate::platform::net::{Handle, TcpListener, TcpStream, is_exhaustion, listen};
use crate::platform::sync::Mutex;
use crate::platform::thread::{self, JoinHandle};
use crate::secure::greeting::{Secrecy, greet};
use crate::secure::handshake::{HandshakeError, Role};
use crate::secure::lobby::Lobby;
use crate::secure::stream::Stream;
use crate::secure::token::JobToken;

/// Connections served at once: every rank of a large job, and a bound on strangers.
const CONNECTIONS_MAX: usize = 4096;
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two lines about too few descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(10);
/// Longest time the server holds one `get`; clients ask again until their own timeout.
const GET_SLICE: Duration = Duration::from_secs(2);

/// Serves a store on its own threads until dropped.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    tables: Arc<MemoryStore>,
    stop: Arc<AtomicBool>,
    handle: Handle,
    acceptor: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Serves at `address` (port 0: any free one) every client that proves the token, without TLS.
    pub fn bind(address: SocketAddr, token: &JobToken) -> Result<Self, StoreError> {
        Self::bind_with(address, token, Tls::Off)
    }

    /// Serves on the first of the addresses of `host` that is this host's. The name is looked up until `timeout`. A
    /// host's name may mean its own loopback address on that host; clients on other hosts would wait for it in vain.
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
            io::ErrorKind::AddrInUse => StoreError::AddressInUse { address: address.to_string() },
            _ => StoreError::Bind { address: address.to_string(), source },
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
        Ok(Self { address, tables, stop, handle, acceptor: Some(acceptor) })
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

fn accept(
    listener: &TcpListener,
    token: &JobToken,
    secrecy: Secrecy<'_>,
    tables: &MemoryStore,
    stop: &AtomicBool,
) {
    let open: Mutex<BTreeMap<u64, TcpStream>> = Mutex::new(BTreeMap::new());
    let open = &open;
    let lobby = &Lobby::default();
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
    warned: Option<Instant>,
}

impl Shortage {
    fn warn(&mut self, error: &io::Error, connections: u64) {
        if self.warned.is_none_or(|warned| clock::since(warned) >= SHORTAGE_PAUSE) {
            self.warned = Some(clock::now());
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
