//! What a group can be told at set-up.

use std::time::Duration;

use bonfire_plan::Algorithm;

use crate::rendezvous::ConnectError;
use crate::transport::TransportKind;

/// Options of a process group. All ranks must agree on them; set-up checks that they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// How long one operation may take before it fails on every rank. Default 60 s.
    pub timeout: Duration,
    /// How long ranks may take to meet. Default 600 s: the first step of a job compiles kernels.
    pub startup_timeout: Duration,
    /// The algorithm for the collectives that it implements; `None` lets Bonfire choose.
    pub algorithm: Option<Algorithm>,
    /// The only transport to use between processes; `None` takes the best that connects each pair.
    pub transport: Option<TransportKind>,
    /// Payload of one frame, in bytes. Default 256 KiB: a frame and what it is reduced into stay in
    /// a second-level cache.
    pub chunk_bytes: usize,
}

/// Smallest and largest `chunk_bytes`.
pub(crate) const CHUNK_BYTES_MIN: usize = 64;
pub(crate) const CHUNK_BYTES_MAX: usize = 64 << 20;

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            startup_timeout: Duration::from_secs(600),
            algorithm: None,
            transport: None,
            chunk_bytes: 256 << 10,
        }
    }
}

impl GroupOptions {
    /// `chunk_bytes` rounded up to whole elements of every type, if it is in range.
    pub(crate) fn chunk_bytes_checked(&self) -> Result<usize, ConnectError> {
        let range = CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX;
        range
            .contains(&self.chunk_bytes)
            .then(|| self.chunk_bytes.next_multiple_of(64))
            .ok_or(ConnectError::ChunkBytes {
                found: self.chunk_bytes,
            })
    }
}
