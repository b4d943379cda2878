//! What a process has in its hands of a connection or a listener.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{Endpoint, Phase};
use super::stream::{TcpStream, UnixStream};
use super::wires::{Door, Entry, Listener, address_of, host_at};
use crate::simulation::place::{Look, Place, Vain, here};
use crate::task::Key;

/// A descriptor; the socket closes with the last of its holders.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) place: Place,
    pub(crate) id: usize,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.place.lock().close(self.id);
    }
}

/// What waits and options are about.
#[derive(Clone, Copy, Debug)]
pub struct SocketRef<'a>(pub(crate) &'a Arc<Descriptor>);

pub trait Socket {
    fn socket(&self) -> SocketRef<'_>;
}

/// A second hold on a connection or a listener, which keeps it open.
#[derive(Debug)]
pub struct Handle(pub(crate) Arc<Descriptor>);

impl Handle {
    /// Of a socket.
    ///
    /// # Errors
    /// Never; a real machine may have no descriptor left.
    pub fn of(socket: &impl Socket) -> io::Result<Self> {
        Ok(Self(Arc::clone(socket.socket().0)))
    }

    /// Ends the connection for its readers and writers at once.
    pub fn hang_up(&self) {
        let mut state = self.0.place.lock();
        match &mut state.wires.entries[self.0.id] {
            Entry::Listener(listener) => {
                listener.is_shut = true;
                state.wake(Key::Socket(self.0.id));
            }
            Entry::Endpoint(_) => state.shut(self.0.id, [true, true]),
        }
    }
}

macro_rules! listener {
    ($name:ident, $stream:ident, $address:ty, $about:literal) => {
        #[doc = $about]
        #[derive(Debug)]
        pub struct $name(pub(crate) Arc<Descriptor>);

        impl $name {
            /// Takes the next connection.
            ///
            /// # Errors
            /// `WouldBlock` where there is none and the listener does not block.
            pub fn accept(&self) -> io::Result<($stream, $address)> {
                let (place, id) = (here(), self.0.id);
                let accepted = place.wait(None, |state| {
                    let listener = state.wires.listener_mut(id);
                    match listener.queue.pop_front() {
                        Some(socket) => Look::Done(Ok(socket)),
                        None if listener.is_shut => Look::Done(Err(ErrorKind::InvalidInput)),
                        None if listener.blocks => Look::Wait(vec![Key::Socket(id)]),
                        None => Look::Done(Err(ErrorKind::WouldBlock)),
                    }
                });
                let id = accepted.unwrap_or(Err(ErrorKind::BrokenPipe))?;
                let remote = place.lock().wires.endpoint(id).remote;
                let stream = $stream(Arc::new(Descriptor { place, id }));
                Ok((stream, <$address>::from_remote(remote)))
            }

            /// Whether accepting waits.
            ///
            /// # Errors
            /// Never.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                let mut state = self.0.place.lock();
                state.wires.listener_mut(self.0.id).blocks = !nonblocking;
                Ok(())
            }

            /// Where it listens.
            ///
            /// # Errors
            /// Never.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                let mut state = self.0.place.lock();
                Ok(state.wires.listener_mut(self.0.id).address)
            }
        }

        impl Socket for $name {
            fn socket(&self) -> SocketRef<'_> {
                SocketRef(&self.0)
            }
        }
    };
}

/// Nothing is known of who connects to a name.
#[derive(Clone, Copy, Debug)]
pub struct Unnamed;

impl Unnamed {
    fn from_remote(_: SocketAddr) -> Self {
        Self
    }
}

/// An address, as a connection has it.
trait FromRemote {
    fn from_remote(remote: SocketAddr) -> Self;
}

impl FromRemote for SocketAddr {
    fn from_remote(remote: SocketAddr) -> Self {
        remote
    }
}

listener!(TcpListener, TcpStream, SocketAddr, "Accepts connections from any host.");
listener!(UnixListener, UnixStream, Unnamed, "Accepts connections from its own host.");

/// A listener at an address of this host; port 0 is any that is free.
///
/// # Errors
/// `AddrInUse`, or `AddrNotAvailable` if it is another host's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let place = here();
    let host = place.lock().processes[place.process].host;
    if host_at(address.ip(), host) != Some(host) {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    let port = match address.port() {
        0 => place.lock().wires.free_port(),
        port => port,
    };
    let address = SocketAddr::new(address.ip(), port);
    open(place, Door::Tcp { host, port }, address).map(TcpListener)
}

/// A listener with a name of this host.
///
/// # Errors
/// `AddrInUse`.
pub fn listen_abstract(name: &str) -> io::Result<UnixListener> {
    let place = here();
    let host = place.lock().processes[place.process].host;
    let name = name.to_owned();
    let address = SocketAddr::new(address_of(host), 0);
    open(place, Door::Name { host, name }, address).map(UnixListener)
}

fn open(place: Place, door: Door, address: SocketAddr) -> io::Result<Arc<Descriptor>> {
    place.give_way();
    let mut state = place.lock();
    if state.processes[place.process].has_ended() {
        return Err(ErrorKind::BrokenPipe.into());
    }
    if state.wires.doors.contains_key(&door) {
        return Err(ErrorKind::AddrInUse.into());
    }
    let (Door::Tcp { host, .. } | Door::Name { host, .. }) = door;
    let listener = Listener {
        process: place.process,
        host,
        door: door.clone(),
        address,
        queue: std::collections::VecDeque::new(),
        blocks: true,
        is_closed: false,
        is_shut: false,
    };
    let id = state.wires.add(Entry::Listener(listener));
    state.wires.doors.insert(door, id);
    drop(state);
    Ok(Arc::new(Descriptor { place, id }))
}

/// Connects to a listener of any host, for `timeout` at most.
///
/// # Errors
/// As the system's.
pub fn connect(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let place = here();
    let host = place.lock().processes[place.process].host;
    let Some(target) = host_at(address.ip(), host) else {
        return Err(ErrorKind::HostUnreachable.into());
    };
    let port = place.lock().wires.free_port();
    let from = if target == host { address.ip() } else { address_of(host) };
    let endpoint = Endpoint::new(place.process, host, [SocketAddr::new(from, port), *address]);
    let door = Door::Tcp { host: target, port: address.port() };
    reach(place, endpoint, door, Some(timeout)).map(TcpStream)
}

/// Connects to a listener with a name of this host.
///
/// # Errors
/// As the system's.
pub fn connect_abstract(name: &str) -> io::Result<UnixStream> {
    let place = here();
    let host = place.lock().processes[place.process].host;
    let name = name.to_owned();
    let nowhere = SocketAddr::new(address_of(host), 0);
    let mut endpoint = Endpoint::new(place.process, host, [nowhere, nowhere]);
    endpoint.is_unix = true;
    reach(place, endpoint, Door::Name { host, name }, None).map(UnixStream)
}

fn reach(
    place: Place,
    endpoint: Endpoint,
    door: Door,
    timeout: Option<Duration>,
) -> io::Result<Arc<Descriptor>> {
    place.give_way();
    let id = {
        let mut state = place.lock();
        if state.processes[place.process].has_ended() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let id = state.wires.add(Entry::Endpoint(Box::new(endpoint)));
        state.ask(id, door);
        id
    };
    let descriptor = Arc::new(Descriptor { place: place.clone(), id });
    let reached = place.wait(timeout, |state| match state.wires.endpoint(id).phase {
        Phase::Connecting => Look::Wait(vec![Key::Socket(id)]),
        phase => Look::Done(phase),
    });
    match reached {
        Ok(Phase::Open) => Ok(descriptor),
        Ok(Phase::Full) => Err(ErrorKind::WouldBlock.into()),
        Ok(_) => Err(ErrorKind::ConnectionRefused.into()),
        Err(Vain::Late) => Err(ErrorKind::TimedOut.into()),
        Err(Vain::Dead) => Err(ErrorKind::BrokenPipe.into()),
    }
}

/// The descriptor, for what only a kernel can do.
///
/// # Errors
/// Always: memory is not shared between hosts of a simulation.
pub fn descriptor(socket: &impl Socket) -> io::Result<BorrowedFd<'_>> {
    let _ = socket;
    Err(ErrorKind::Unsupported.into())
}
