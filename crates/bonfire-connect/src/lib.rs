//! Connections between the processes of a job, below groups and ranks.
//!
//! - [`platform`]: time, threads, locks, sockets and randomness, which a simulation can replace.
//! - [`secure`]: who is at the other end of a connection, and that nobody else listens.
//! - [`carrier`]: which thread calls the kernel for a stream.
//! - [`connections`]: on which connections something is done.
//! - [`store`]: the small key-value store through which processes find each other.
//!
//! Nothing here knows what a rank or a collective operation is.

#![allow(
    missing_docs,
    reason = "part of Bonfire, not an interface for users; docs say what names do not"
)]
#![forbid(unsafe_code)]

pub mod carrier;
pub mod connections;
pub mod platform;
#[cfg(not(laboratory))]
mod relay;
pub mod secure;
pub mod store;
