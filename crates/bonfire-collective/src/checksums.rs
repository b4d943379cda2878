//! Which links check that their frames arrive as they were sent.

use crate::connections::Connections;
use crate::environment::{CHECKSUMS, EnvError, choice_from_env};
use crate::rendezvous::ConnectError;

/// The links whose frames carry a CRC-32C of their header and one of their payload: none, those between
/// hosts, or all that go over sockets, on one host as well.
///
/// TCP's own checksum has 16 bits, and is made anew by whatever rewrites packets on the way; memory of
/// interfaces and switches that turns bits over gets past it now and then. Without a checksum of its own
/// such a frame is a wrong sum, in silence, on all ranks or on some. With it the operation fails as
/// [`CollectiveError::Corrupted`](crate::CollectiveError::Corrupted). Connections that TLS encrypts need
/// none: it authenticates every record. The book has what it costs.
pub type Checksums = Connections;

/// What `BONFIRE_CHECKSUMS` says in the environment of this process, or else this choice.
pub(crate) fn or_environment(choice: Checksums) -> Result<Checksums, ConnectError> {
    let told = choice_from_env(CHECKSUMS, |source| EnvError::Checksums { source });
    Ok(told.map_err(ConnectError::Environment)?.unwrap_or(choice))
}
