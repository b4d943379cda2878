//! Connections of the simulation, and sleeping until one of them has news.

mod edges;
mod endpoint;
mod events;
mod faults;
mod socket;
mod stream;
mod wires;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use edges::{Edges, News, await_news};
pub(crate) use events::NetEvent;
pub use socket::{
    Handle, Socket, SocketRef, TcpListener, UnixListener, connect, connect_abstract, descriptor,
    listen, listen_abstract,
};
pub use stream::{
    TcpStream, UnixStream, is_exhaustion, is_of_this_user, keep_alive, notice_silence, process_of,
    set_buffers, unacknowledged_bytes,
};
pub(crate) use wires::Wires;

#[derive(Clone, Debug)]
pub struct Conditions {
    /// How long a packet takes from host to host.
    pub latency: RangeInclusive<Duration>,
    /// One packet in this many is lost and sent again; 0 if none is.
    pub loss: u64,
    /// Bytes that a connection takes before somebody reads them.
    pub window_bytes: usize,
    /// Connections that a listener has room for before they are accepted.
    pub backlog: usize,
    /// One read or write in this many moves only a part of what it could; 0 if none does.
    pub short: u64,
    /// One connection between hosts in this many breaks soon after it was made; 0 if none does.
    pub breaks: u64,
    /// Threads that a host says it can run at one time.
    pub cores: usize,
}

/// When a connection to a silent host ends.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// Silence on an idle connection before the kernel asks whether the other side is there.
    pub idle: Duration,
    /// Pause between two such questions.
    pub interval: Duration,
    /// A host that answers nothing for this long is lost.
    pub silence_max: Duration,
}
