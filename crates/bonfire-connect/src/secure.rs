//! Who is at the other end of a connection, and that nobody else listens.

pub mod greeting;
pub mod handshake;
pub mod lobby;
pub mod stream;
pub mod tls;
pub mod token;
