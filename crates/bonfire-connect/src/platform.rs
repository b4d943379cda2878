//! What a rank needs of the machine that it runs on: time, threads, locks, connections, randomness.
//!
//! Everything in this crate and in groups of processes that a simulation must be able to replace is
//! asked for here and nowhere else. The launcher and GPUs are not simulated. It is the standard library and the
//! operating system under other names, and costs nothing. Built with `--cfg laboratory` it is the
//! simulation of `bonfire-laboratory` instead.

#[cfg(not(laboratory))]
pub mod clock;
#[cfg(not(laboratory))]
pub mod host;
#[cfg(not(laboratory))]
pub mod net;
#[cfg(not(laboratory))]
pub mod random;
#[cfg(not(laboratory))]
pub mod sync;
#[cfg(not(laboratory))]
pub mod thread;

#[cfg(laboratory)]
pub use bonfire_laboratory::{clock, host, net, random, sync, thread};
