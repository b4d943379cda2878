//! What a rank needs of the machine that it runs on: time, threads, locks, connections, randomness.
//!
//! Everything in this crate that a simulation must be able to replace is asked for here and nowhere
//! else, but for the launcher and for GPUs, which are not simulated. It is the standard library and the
//! operating system under other names, and costs nothing. Built with `--cfg laboratory` it is the
//! simulation of `bonfire-laboratory` instead.

#[cfg(not(laboratory))]
pub(crate) mod clock;
#[cfg(not(laboratory))]
pub(crate) mod host;
#[cfg(not(laboratory))]
pub(crate) mod net;
#[cfg(not(laboratory))]
pub(crate) mod random;
#[cfg(not(laboratory))]
pub(crate) mod sync;
#[cfg(not(laboratory))]
pub(crate) mod thread;

#[cfg(laboratory)]
pub(crate) use bonfire_laboratory::{clock, host, net, random, sync, thread};
