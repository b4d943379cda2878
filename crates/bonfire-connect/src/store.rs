//! A small key-value store through which ranks find each other at set-up.
//!
//! It never carries data of the step path. Values are bytes; keys are text; nothing received is interpreted here.

mod client;
mod long_wait;
mod memory;
mod place;
mod protocol;
mod server;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::secure::handshake::TLS_CHOICE;

pub use client::TcpStore;
pub use long_wait::LongWait;
pub use memory::MemoryStore;
pub use place::Clients;
pub use server::TcpStoreServer;

pub const KEY_BYTES_MAX: usize = 1 << 10;
pub const VALUE_BYTES_MAX: usize = 1 << 20;

pub trait Store: Send + Sync {
    /// Sets `key`, replacing what was there, and wakes the callers that wait for it.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// The value of `key`, waiting up to `timeout` for somebody to set it.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError>;

    /// Adds to the counter `key` (0 at first) and returns the sum. Counters and values are separate.
    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError>;
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("nobody set the key {key:?} within {} s", .waited.as_secs_f32())]
    Timeout { key: String, waited: Duration },
    #[error("{what} of {bytes} bytes, but the store takes {bytes_max}")]
    TooLong {
        /// `"a key"` or `"a value"`.
        what: &'static str,
        bytes: usize,
        bytes_max: usize,
    },
    #[error(
        "cannot serve the store at {address}: the port is taken, perhaps by another job; choose \
         another one with --master-port, or stop the other program"
    )]
    AddressInUse { address: String },
    #[error("cannot serve the store at {address}")]
    Bind { address: String, source: io::Error },
    /// The text is neither a name nor an address of a host.
    #[error(
        "{host:?} is neither a name nor an address of a host: give --master-addr (MASTER_ADDR) the one of \
         node 0"
    )]
    NotAName { host: String },
    /// The name of the host of rank 0 has no address here.
    #[error(
        "cannot resolve the master address {host} within {} s: check the spelling of --master-addr \
         (MASTER_ADDR), or give a numeric address",
        .waited.as_secs_f32()
    )]
    Unresolved { host: String, waited: Duration, source: io::Error },
    /// The host that is to serve does not have the address.
    #[error(
        "this is node 0, but {address} is not an address of this host: give --master-addr (MASTER_ADDR) \
         an address of node 0 that the other nodes can reach"
    )]
    NotMyAddress { address: String },
    /// The host that is to serve takes its own name for a loopback address.
    #[error(
        "this is node 0, and takes {host} for its loopback address {ip} (see /etc/hosts), where no \
         other node can reach it: give --master-addr (MASTER_ADDR) an address of node 0"
    )]
    LoopbackMaster { host: String, ip: IpAddr },
    #[error(
        "no store at {address} within {} s: is rank 0's host up, and are MASTER_ADDR and \
         MASTER_PORT the same everywhere?",
        .waited.as_secs_f32()
    )]
    Unreachable { address: String, waited: Duration, source: io::Error },
    #[error("the store at {address} does not know this job's token: another job is there")]
    WrongToken { address: String },
    #[error(
        "this end of the connection to the store at {address} uses {here}, the other {there}: give \
         the launcher and all ranks the same {TLS_CHOICE}"
    )]
    TlsDiffers {
        address: String,
        /// Either `"TLS"` or `"no TLS"`.
        here: &'static str,
        /// The other of the two.
        there: &'static str,
    },
    #[error("cannot make a key for TLS")]
    Identity(#[source] io::Error),
    #[error("the connection to the store broke")]
    Broken(#[from] io::Error),
}

fn check_lengths(key: &str, value: &[u8]) -> Result<(), StoreError> {
    for (what, bytes, bytes_max) in
        [("a key", key.len(), KEY_BYTES_MAX), ("a value", value.len(), VALUE_BYTES_MAX)]
    {
        if bytes > bytes_max {
            return Err(StoreError::TooLong { what, bytes, bytes_max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
