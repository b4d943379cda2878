//! Connections, and sleeping until one of them has news.

mod edges;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::time::Duration;

use bonfire_sys::socket::peer_credentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, shutdown, socket_with,
};

pub use edges::{Edges, News};
pub use std::net::{TcpListener, TcpStream};
pub use std::os::unix::net::{UnixListener, UnixStream};

/// Pending connections the kernel keeps while a listener is busy.
const BACKLOG: i32 = 1024;

/// When a connection to a silent host ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SilenceLimits {
    /// Silence on an idle connection before the kernel asks whether the other side is there.
    pub idle: Duration,
    /// Pause between two such questions.
    pub interval: Duration,
    /// A host that answers nothing for this long is lost.
    pub silence_max: Duration,
}

/// A connection or a listener, however it is wrapped.
pub trait Socket {
    fn socket(&self) -> SocketRef<'_>;
}

pub type SocketRef<'a> = BorrowedFd<'a>;

macro_rules! sockets {
    ($($type:ty),*) => {$(
        impl Socket for $type {
            fn socket(&self) -> SocketRef<'_> {
                self.as_fd()
            }
        }
    )*};
}
sockets!(TcpListener, TcpStream, UnixListener, UnixStream);

/// A second hold on a connection or a listener: to wait for news of it, or to end it, while its owner
/// uses it. It keeps the connection open.
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    pub fn of(socket: &impl Socket) -> io::Result<Self> {
        Ok(Self(socket.socket().try_clone_to_owned()?))
    }

    /// Ends the connection for its readers and writers at once.
    pub fn hang_up(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Sleeps until one of them has something to read or to accept, or has failed, for `timeout` at most;
/// the places of those that have.
pub fn await_news(handles: &[&Handle], timeout: Duration) -> Vec<usize> {
    let mut interests: Vec<PollFd<'_>> =
        handles.iter().map(|handle| PollFd::new(&handle.0, PollFlags::IN)).collect();
    // A failed poll (a signal) is an empty one.
    let _ = poll(&mut interests, Some(&timespec(timeout)));
    let ready =
        |(index, interest): (usize, &PollFd<'_>)| (!interest.revents().is_empty()).then_some(index);
    interests.iter().enumerate().filter_map(ready).collect()
}

/// Wakes another thread that waits for connections: news without bytes.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings, also for a thread that begins to wait later.
    pub(crate) fn ring(&self) {
        // Its count has room for longer than a machine runs.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Silences the bell until it rings again.
    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; size_of::<u64>()]);
    }
}

impl Socket for Bell {
    fn socket(&self) -> SocketRef<'_> {
        self.0.as_fd()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub reads: bool,
    pub writes: bool,
}

/// Sleeps until `socket` has something to read or room to write, whichever is asked for, or `bell` rings, for `timeout` at
/// most.
pub(crate) fn await_turn(socket: &impl Socket, wanted: Wanted, bell: &Bell, timeout: Duration) {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, wanted.reads);
    flags.set(PollFlags::OUT, wanted.writes);
    let bell_news = PollFd::new(&bell.0, PollFlags::IN);
    let turn = PollFd::from_borrowed_fd(socket.socket(), flags);
    // The end of a connection is always news, and would end every sleep.
    let mut interests = [bell_news, turn];
    let count = if flags.is_empty() { 1 } else { 2 };
    let _ = poll(&mut interests[..count], Some(&timespec(timeout)));
    bell.hush();
}

/// A listener that may take over a port whose last owner has just ended.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to a listener of any host, for `timeout` at most.
pub fn connect(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(address, timeout)
}

/// A listener with a name of this host that is in no file system.
pub fn listen_abstract(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)
}

/// Connects to such a listener. Does not wait where that has no room for one more, which for a process
/// that is stopped would be for ever.
///
/// # Errors
/// `WouldBlock` in that case.
pub fn connect_abstract(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether the other end is a process of the user of this one.
pub fn is_of_this_user(stream: &UnixStream) -> bool {
    let user = rustix::process::geteuid().as_raw();
    peer_credentials(stream).is_ok_and(|peer| peer.user == user)
}

/// The process at the other end, where both are on one machine and see each other's.
pub(crate) fn process_of(stream: &UnixStream) -> Option<u32> {
    let peer = peer_credentials(stream).ok()?;
    peer.process.map(NonZeroU32::get)
}

/// Has the kernel ask the other side from time to time whether it is there, so that whatever is on the
/// way does not forget an idle connection. Bytes that are not taken end nothing.
pub(crate) fn keep_alive(stream: &TcpStream, limits: SilenceLimits) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, limits.idle)?;
    sockopt::set_tcp_keepintvl(stream, limits.interval)?;
    let questions = limits.silence_max.as_secs() / limits.interval.as_secs().max(1);
    sockopt::set_tcp_keepcnt(stream, u32::try_from(questions).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Bytes that were sent and that the other host has not acknowledged, which it does also for a process
/// that is stopped.
pub(crate) fn unacknowledged_bytes(stream: &TcpStream) -> Option<usize> {
    bonfire_sys::socket::unacknowledged_bytes(stream).ok()
}

/// Gives the kernel's buffers of both directions a size, if the administrator allows it.
pub(crate) fn set_buffers(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    if may_buffer(bytes) {
        sockopt::set_socket_send_buffer_size(stream, bytes)?;
        sockopt::set_socket_recv_buffer_size(stream, bytes)?;
    }
    Ok(())
}

/// Ends the connection with an error when the other host falls silent.
pub(crate) fn notice_silence(stream: &TcpStream, limits: SilenceLimits) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, limits.idle)?;
    sockopt::set_tcp_keepintvl(stream, limits.interval)?;
    // This also bounds the questions: the kernel counts time, not answers, where it is set.
    sockopt::set_tcp_user_timeout(stream, limits.silence_max.as_millis() as u32)?;
    Ok(())
}

/// Whether the system has no descriptor or memory left for a connection at the moment.
pub fn is_exhaustion(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS))
}

/// The descriptor, for what only the kernel can do: sending other descriptors.
pub fn descriptor(socket: &impl Socket) -> io::Result<BorrowedFd<'_>> {
    Ok(socket.socket())
}

/// Whether the administrator allows buffers of this size. Asking for more gives less than the kernel
/// would take by itself, and for good, so then it is better not to ask.
fn may_buffer(bytes: usize) -> bool {
    ["wmem_max", "rmem_max"].iter().all(|limit| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{limit}"));
        let limit = text.ok().and_then(|text| text.trim().parse::<usize>().ok());
        limit.is_some_and(|limit| limit >= bytes)
    })
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where the process that listens is stopped.
    #[test]
    fn a_socket_whose_queue_is_full_keeps_nobody_waiting() {
        let name = format!("bonfire-test-full-{}", std::process::id());
        let listener = listen_abstract(&name).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut queued = Vec::new();
        let error = loop {
            match connect_abstract(&name) {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
            assert!(queued.len() < 100, "the queue never fills");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!queued.is_empty());
        // As soon as the process runs, it has room again.
        listener.accept().unwrap();
        connect_abstract(&name).unwrap();
    }
}
