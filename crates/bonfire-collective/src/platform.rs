//! What a rank needs of the machine that it runs on: time, threads, locks, connections, randomness.
//!
//! Everything in this crate that a simulation must be able to replace is asked for here and nowhere
//! else, but for the launcher and for GPUs, which are not simulated. It is the standard library and the
//! operating system under other names, and costs nothing.

pub(crate) mod clock;
pub(crate) mod host;
pub(crate) mod net;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod thread;
