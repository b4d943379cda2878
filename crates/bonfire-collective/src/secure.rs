//! Who is at the other end of a connection, and that nobody else listens.

pub(crate) mod greeting;
pub(crate) mod handshake;
pub(crate) mod lobby;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod token;
