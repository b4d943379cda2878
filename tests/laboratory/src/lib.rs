//! A machine room that exists only in memory: hosts, processes, a network and a clock, all of which
//! follow from a seed.
//!
//! The crate offers what `bonfire-connect` and `bonfire-collective` ask of the machine that they run
//! on, under the same names. Built with `--cfg laboratory`, those use these instead of the operating
//! system's, and so their store, rendezvous, control channel and executor run here unchanged. Nothing
//! else uses this crate, and no other build contains it.
//!
//! Threads are real, but only one runs at a time: it runs until it waits or gives way, and then the
//! seed chooses the next. Time is a number that grows when everybody waits. So a run is a function
//! of its seed: the same one gives the same order of events, the same faults at the same moments
//! and the same errors. The way of doing it follows FoundationDB's simulation (Zhou et al., SIGMOD
//! 2021).
//!
//! What the network does is what programs see of TCP: bytes come late, in order and in pieces of any
//! size. Loss and reordering of packets are delays; connections break; hosts are cut off. What it never
//! does is to consult anything outside the seed.

#![allow(missing_docs, reason = "for the tests of this workspace alone")]
#![forbid(unsafe_code)]

mod chance;
mod process;
mod report;
mod simulation;
mod task;

pub mod clock;
pub mod host;
pub mod random;
pub mod sync;

pub use chance::Chance;
pub use report::Report;
pub use simulation::net::Conditions;
pub use simulation::{Fault, ProcessId, Simulation, net, thread};

#[cfg(test)]
mod tests;
