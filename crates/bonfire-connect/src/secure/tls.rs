//! Encryption of connections between hosts, without certificates that anybody would have to manage.
//!
//! TLS 1.3 with a key pair that each process makes for itself and sends as it is (RFC 7250). Nobody vouches for the
//! key: the peer at the other end is authenticated by the challenge with the job's token, which covers a value that
//! only the two ends of this TLS connection have (RFC 9266). Somebody in between who speaks TLS to either side has
//! another value with each, and without the token no proof that holds.

mod identity;
mod session;

pub use identity::Identity;
pub(crate) use session::BINDING_BYTES;
pub use session::TlsStream;
