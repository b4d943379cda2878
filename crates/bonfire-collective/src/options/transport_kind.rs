//! Ways in which two ranks can exchange data.

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

    /// Whether two processes at these places can use this transport; the reason if not.
    pub(crate) fn can_connect(self, mine: &HostId, theirs: &HostId) -> Result<(), &'static str> {
        match self {
            Self::Local => Err("the ranks are separate processes"),
            Self::Shm | Self::Unix if mine != theirs => Err("the ranks are on different hosts"),
            Self::Shm | Self::Unix | Self::Tcp => Ok(()),
        }
    }
}

bonfire_plan::named!(TransportKind as "transport" { Local = "local", Shm = "shm", Unix = "unix", Tcp = "tcp" });
