//! Ways to move frames between two ranks, and which one a pair uses.
//!
//! The table, best first: memory shared by threads, memory shared by processes of one host, a
//! Unix-domain socket, TCP. Every link is a FIFO of frames with a fixed number of slots and the same
//! verbs: put a frame, wait for the oldest one, read it, release it.

mod frame;
mod inbox;
mod links;
mod memory;
#[cfg(test)]
#[path = "transport/tests/sample.rs"]
mod sample;
mod sharing;
mod socket;
mod stripes;
pub(crate) mod topology;
mod traffic;
pub(crate) mod wire;

pub(crate) use frame::Frame;
pub(crate) use links::{Arrival, LinkError, Links};
pub(crate) use memory::{MemoryLink, local_links, ring_layout};
pub(crate) use sharing::{Sharing, new_arena};
pub(crate) use socket::{Due, SocketLink};
pub use traffic::Traffic;

/// Frames that can be under way on a link before a put waits. Four keep both sides busy while they
/// are a chunk or two apart; more would only take memory.
pub(crate) const SLOTS: u32 = 4;
