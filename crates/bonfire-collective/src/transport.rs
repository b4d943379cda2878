//! Ways to move frames between two ranks, and which one a pair uses.
//!
//! The table, best first: memory shared by threads, memory shared by processes of one host, a
//! Unix-domain socket, TCP. Every link is a FIFO of frames with a fixed number of slots and the same
//! verbs: put a frame, wait for the oldest one, read it, release it.

mod frame;
mod inbox;
mod links;
mod memory;
mod readiness;
#[cfg(test)]
mod sample;
mod sharing;
mod socket;
mod stripes;
mod traffic;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::platform::host;
pub(crate) use frame::Frame;
pub(crate) use links::{Arrival, LinkError, Links};
pub(crate) use memory::{MemoryLink, local_links, ring_layout};
pub(crate) use sharing::{Sharing, new_arena};
pub(crate) use socket::{Due, SocketLink};
pub(crate) use stripes::STREAMS_MAX;
pub use traffic::Traffic;

/// Frames that can be under way on a link before a put waits. Four keep both sides busy while they
/// are a chunk or two apart; more would only take memory.
pub(crate) const SLOTS: u32 = 4;

/// How two ranks exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TransportKind {
    /// Threads of one process share memory.
    Local,
    /// Processes on one host share memory.
    Shm,
    /// A Unix-domain socket between processes on one host.
    Unix,
    /// TCP, between hosts or on one.
    Tcp,
}

impl TransportKind {
    /// The transports between processes, best first.
    pub(crate) const BETWEEN_PROCESSES: [Self; 3] = [Self::Shm, Self::Unix, Self::Tcp];

    /// The name on command lines and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }

    /// Whether two processes at these places can use this transport; the reason if not.
    pub(crate) fn can_connect(self, mine: &HostId, theirs: &HostId) -> Result<(), &'static str> {
        match self {
            Self::Local => Err("the ranks are separate processes"),
            Self::Shm | Self::Unix if mine != theirs => Err("the ranks are on different hosts"),
            Self::Shm | Self::Unix | Self::Tcp => Ok(()),
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown transport {0:?}: choose local, shm, unix or tcp")]
pub struct UnknownTransport(String);

impl FromStr for TransportKind {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Local, Self::Shm, Self::Unix, Self::Tcp]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownTransport(text.to_owned()))
    }
}

/// Which host, and which network namespace on it: two containers of one machine count as two hosts,
/// because neither sockets nor descriptors pass between them by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostId(String);

impl HostId {
    /// The host of this process; `extra` divides what would otherwise be one host.
    pub fn of_this_process(extra: Option<&str>) -> Self {
        let extra = extra.unwrap_or_default();
        Self(format!("{} {extra}", host::identity()))
    }
}
