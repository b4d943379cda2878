//! The client of the store over TCP, in every rank.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::place::{LOOKUP_PAUSE, check_name, look_up};
use super::protocol::{Reply, Request};
use super::{LongWait, Store, StoreError, check_lengths};
use crate::connections::Tls;
use crate::platform::clock;
use crate::platform::net::{Handle, TcpStream, await_news, connect};
use crate::platform::sync::Mutex;
use crate::platform::thread;
use crate::secure::greeting::{Secrecy, greet};
use crate::secure::handshake::{HandshakeError, Role};
use crate::secure::stream::Stream;
use crate::secure::tls::Identity;
use crate::secure::token::JobToken;

/// A connection that does not prove the token in this time is closed.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that answers nothing for this long, beyond what it was asked to wait, is lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two attempts to reach a server that is not up yet.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct TcpStore {
    line: Mutex<Line>,
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
                            line: Mutex::new(Line { stream, is_owed: false }),
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
                    Err(HandshakeError::Io(source) | HandshakeError::Random(source)) => source,
                },
                Err(source) => source,
            };
            let waited = clock::since(started);
            if waited + RETRY_PAUSE >= timeout {
                return Err(StoreError::Unreachable { address, waited, source });
            }
            wait.log(|| format!("the store at {address}, on the host of rank 0 ({source})"));
            thread::sleep(pause);
        }
    }

    /// The address of this end: the interface through which the store's host is reached.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the last call asked for, if it has come and was set, and asks for `key` again. Waits for
    /// nothing: an answer that has not come is taken by a later call. An error if the server has ended
    /// the connection, or fallen silent.
    pub fn peek(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        check_lengths(key, &[])?;
        let mut line = self.line.lock();
        let has_news = !await_news(&[&self.handle], Duration::ZERO).is_empty();
        if has_news && let Reply::Value(value) = line.receive()? {
            return Ok(Some(value));
        }
        if !line.is_owed {
            line.send(&Request::Get { key: key.to_owned(), timeout_ms: 0 })?;
        }
        Ok(None)
    }

    /// From now on the server has so long to answer a request.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.line.lock().stream.set_read_timeout(Some(timeout))
    }

    fn ask(&self, request: &Request) -> Result<Reply, StoreError> {
        let mut line = self.line.lock();
        if line.is_owed {
            line.receive()?;
        }
        line.send(request)?;
        Ok(line.receive()?)
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
    StoreError::TlsDiffers { address, here, there }
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
        let request = Request::Set { key: key.to_owned(), value: value.to_owned() };
        self.ask(&request).map(|_| ())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        check_lengths(key, &[])?;
        let started = clock::now();
        loop {
            let left = timeout.saturating_sub(clock::since(started));
            let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let request = Request::Get { key: key.to_owned(), timeout_ms };
            if let Reply::Value(value) = self.ask(&request)? {
                return Ok(value);
            }
            let waited = clock::since(started);
            if waited >= timeout {
                return Err(StoreError::Timeout { key: key.to_owned(), waited });
            }
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        check_lengths(key, &[])?;
        match self.ask(&Request::Add { key: key.to_owned(), amount })? {
            Reply::Done(sum) => Ok(sum),
            other => Err(StoreError::Broken(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the store answered an addition with {other:?}"),
            ))),
        }
    }
}

/// The key for connections with a store at this address, if they are encrypted.
pub(super) fn identity(tls: Tls, ip: IpAddr) -> Result<Option<Identity>, StoreError> {
    let identity = tls.cover_store(ip).then(Identity::new).transpose();
    identity.map_err(StoreError::Identity)
}
