//! Connections, as programs use them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::SilenceLimits;
use super::endpoint::{Endpoint, Segment};
use super::socket::{Descriptor, Socket, SocketRef};
use crate::simulation::place::{Look, Vain, here};
use crate::simulation::state::State;
use crate::task::Key;

impl State {
    pub(super) fn shut(&mut self, id: usize, [reading, writing]: [bool; 2]) {
        let endpoint = self.wires.endpoint_mut(id);
        endpoint.is_read_shut |= reading;
        endpoint.news += u64::from(reading);
        let says_end = writing && !endpoint.is_write_shut && !endpoint.is_closed;
        endpoint.is_write_shut |= writing;
        if let Some(peer) = endpoint.peer.filter(|_| says_end) {
            self.send(peer, Segment::End);
        }
        self.wake(Key::Socket(id));
    }
}

fn read(descriptor: &Descriptor, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let id = descriptor.id;
    let timeout = descriptor.place.lock().wires.endpoint(id).read_timeout;
    let result = here().wait(timeout, |state| {
        let is_short = state.chance.once_in(state.conditions.short);
        let endpoint = state.wires.endpoint_mut(id);
        let read = match &mut *parts {
            [first, ..] if is_short && first.len() > 1 => {
                let half = first.len() / 2;
                endpoint.read(&mut [IoSliceMut::new(&mut first[..half])])
            }
            parts => endpoint.read(parts),
        };
        let blocks = endpoint.blocks;
        match read {
            Some(result) => {
                state.wake(Key::Room(id));
                Look::Done(result)
            }
            None if blocks => Look::Wait(vec![Key::Socket(id)]),
            None => Look::Done(Err(ErrorKind::WouldBlock.into())),
        }
    });
    result.unwrap_or_else(|vain| Err(kind_of(vain).into()))
}

fn write(descriptor: &Descriptor, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let id = descriptor.id;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let timeout = descriptor.place.lock().wires.endpoint(id).write_timeout;
    let result = here().wait(timeout, |state| {
        let endpoint = state.wires.endpoint(id);
        if let Some(kind) = endpoint.write_fault() {
            return Look::Done(Err(kind.into()));
        }
        let blocks = endpoint.blocks;
        let peer = endpoint.peer.expect("an open connection has two ends");
        let mut count = state.room_at(peer).min(total);
        if count == 0 && total > 0 {
            return if blocks {
                Look::Wait(vec![Key::Room(peer), Key::Socket(id)])
            } else {
                Look::Done(Err(ErrorKind::WouldBlock.into()))
            };
        }
        if count > 1 && state.chance.once_in(state.conditions.short) {
            count /= 2;
        }
        let bytes = parts.iter().flat_map(|part| part.iter().copied());
        let bytes: Vec<u8> = bytes.take(count).collect();
        if !bytes.is_empty() {
            state.send(peer, Segment::Bytes(bytes));
        }
        Look::Done(Ok(count))
    });
    result.unwrap_or_else(|vain| Err(kind_of(vain).into()))
}

impl State {
    /// Bytes that may be sent to a socket.
    pub(super) fn room_at(&self, socket: usize) -> usize {
        let target = self.wires.endpoint(socket);
        let taken = if target.is_closed {
            target.piped_bytes
        } else {
            target.inbox.len() + target.piped_bytes
        };
        self.conditions.window_bytes.saturating_sub(taken)
    }
}

fn kind_of(vain: Vain) -> ErrorKind {
    match vain {
        // What the system says when a read or a write with a limit takes too long.
        Vain::Late => ErrorKind::WouldBlock,
        Vain::Dead => ErrorKind::BrokenPipe,
    }
}

macro_rules! stream {
    ($name:ident, $about:literal) => {
        #[doc = $about]
        #[derive(Debug)]
        pub struct $name(pub(super) Arc<Descriptor>);

        impl $name {
            fn with<R>(&self, change: impl FnOnce(&mut Endpoint) -> R) -> R {
                let mut state = self.0.place.lock();
                change(state.wires.endpoint_mut(self.0.id))
            }

            /// Limits every read.
            ///
            /// # Errors
            /// If the limit is zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                check(timeout)?;
                self.with(|endpoint| endpoint.read_timeout = timeout);
                Ok(())
            }

            /// Limits every write.
            ///
            /// # Errors
            /// If the limit is zero.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                check(timeout)?;
                self.with(|endpoint| endpoint.write_timeout = timeout);
                Ok(())
            }

            /// Whether reads and writes wait.
            ///
            /// # Errors
            /// Never.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.with(|endpoint| endpoint.blocks = !nonblocking);
                Ok(())
            }

            /// Ends one direction or both.
            ///
            /// # Errors
            /// Never.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                let directions = match how {
                    Shutdown::Read => [true, false],
                    Shutdown::Write => [false, true],
                    Shutdown::Both => [true, true],
                };
                self.0.place.lock().shut(self.0.id, directions);
                Ok(())
            }
        }

        impl Socket for $name {
            fn socket(&self) -> SocketRef<'_> {
                SocketRef(&self.0)
            }
        }

        impl Read for $name {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                read(&self.0, &mut [IoSliceMut::new(bytes)])
            }

            fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                read(&self.0, parts)
            }
        }

        impl Read for &$name {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                read(&self.0, &mut [IoSliceMut::new(bytes)])
            }
        }

        impl Write for $name {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                write(&self.0, &[IoSlice::new(bytes)])
            }

            fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
                write(&self.0, parts)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    };
}

stream!(TcpStream, "A connection between hosts, or on one.");
stream!(UnixStream, "A connection within a host.");

fn check(timeout: Option<Duration>) -> io::Result<()> {
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        Err(ErrorKind::InvalidInput.into())
    } else {
        Ok(())
    }
}

impl TcpStream {
    /// Every write goes out at once here.
    ///
    /// # Errors
    /// Never.
    pub fn set_nodelay(&self, _nodelay: bool) -> io::Result<()> {
        Ok(())
    }

    /// The address of this end.
    ///
    /// # Errors
    /// Never.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.with(|endpoint| endpoint.local))
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// Never.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.with(|endpoint| endpoint.remote))
    }

    /// A second hold on it.
    ///
    /// # Errors
    /// Never.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(Arc::clone(&self.0)))
    }
}

/// The simulation has only one user.
pub fn is_of_this_user(_stream: &UnixStream) -> bool {
    true
}

pub fn process_of(stream: &UnixStream) -> Option<u32> {
    let state = stream.0.place.lock();
    let peer = state.wires.endpoint(stream.0.id).peer?;
    let process = state.wires.endpoint(peer).process;
    Some(state.processes[process].system_id())
}

/// Bytes that were sent and that have not arrived.
pub fn unacknowledged_bytes(stream: &TcpStream) -> Option<usize> {
    let state = stream.0.place.lock();
    let peer = state.wires.endpoint(stream.0.id).peer?;
    Some(state.wires.endpoint(peer).piped_bytes)
}

/// The buffers are the simulation's.
///
/// # Errors
/// Never.
pub fn set_buffers(_stream: &TcpStream, _bytes: usize) -> io::Result<()> {
    Ok(())
}

/// No idle connection is forgotten here.
///
/// # Errors
/// Never.
pub fn keep_alive(_stream: &TcpStream, _limits: SilenceLimits) -> io::Result<()> {
    Ok(())
}

/// No machine of the simulation lacks descriptors.
pub fn is_exhaustion(_error: &io::Error) -> bool {
    false
}

/// Ends the connection with an error when the other host falls silent.
///
/// # Errors
/// Never.
pub fn notice_silence(stream: &TcpStream, limits: SilenceLimits) -> io::Result<()> {
    let mut state = stream.0.place.lock();
    state.wires.endpoint_mut(stream.0.id).silence_max = Some(limits.idle + limits.silence_max);
    state.expect_silence(stream.0.id);
    Ok(())
}
