//! Ways in which two ranks can exchange data.

use std::fmt;
use std::str::FromStr;

use bonfire_plan::UnknownName;
use serde::{Deserialize, Serialize};

use crate::options::place::HostId;

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

impl FromStr for TransportKind {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find(
            "transport",
            text,
            &[Self::Local, Self::Shm, Self::Unix, Self::Tcp],
        )
    }
}
