//! Which links check that their frames arrive as they were sent.

use crate::connections::Connections;

/// The links whose frames carry a CRC-32C of their header and one of their payload: none, those between
/// hosts, or all that go over sockets, on one host as well.
///
/// TCP's own checksum has 16 bits, and is made anew by whatever rewrites packets on the way; memory of
/// interfaces and switches that turns bits over gets past it now and then. Without a checksum of its own
/// such a frame is a wrong sum, in silence, on all ranks or on some. With it the operation fails as
/// [`CollectiveError::Corrupted`](crate::CollectiveError::Corrupted). Connections that TLS encrypts need
/// none: it authenticates every record. The book has what it costs.
pub type Checksums = Connections;
