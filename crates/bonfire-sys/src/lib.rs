//! Safe wrappers over the operating system.
//!
//! - [`ring`]: a single-producer single-consumer queue of frames in shared memory, whose types hand
//!   the ownership of each slot back and forth, so that no two sides ever touch the same bytes.
//! - [`Arena`]: blocks of typed memory that other processes can reach.
//! - [`window`]: buffers that ranks open to each other, each rank to its own shard of all of them.
//! - [`streaming`]: results that are written past the caches.
//! - [`FileMemory`]: memory whose content is in a file, whose pages the kernel can take.
//! - [`Turnstile`]: threads continue one at a time, in the order of their tickets.
//!
//! Nothing here knows about ranks, plans or tensors.

#![allow(missing_docs, reason = "not for users; docs say what names do not")]
#![allow(unsafe_code, reason = "system calls, shared memory: each site with its proof")]
// The model checker sees the protocols without their users.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
mod arena;
mod doorbell;
#[cfg(not(loom))]
mod file_memory;
mod lease;
pub mod lock;
pub mod process;
mod region;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod socket;
pub mod streaming;
mod sync;
mod turnstile;
#[cfg(not(loom))]
pub mod window;

#[cfg(not(loom))]
pub use arena::{Arena, ArenaError, Block};
#[cfg(not(loom))]
pub use file_memory::{FileMemory, FileMemoryError};
pub use region::{OpenError, RegionError, can_share_memory, memory_bytes};
pub use turnstile::{Ticket, Turn, Turnstile};
