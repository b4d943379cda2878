//! What the tests of Bonfire share: ranks as threads or processes, a conformance suite for every
//! transport, independent oracles, and watchdogs.
//!
//! For tests only: nothing a user runs depends on this crate.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod oracle;
mod ranks;
mod watchdog;

pub use ranks::{connected, env_of, local, processes};
pub use watchdog::Watchdog;
