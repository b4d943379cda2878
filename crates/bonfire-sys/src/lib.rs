//! Safe wrappers over the operating system: the one crate of Bonfire that may use `unsafe`.
//!
//! - [`Region`]: memory shared between threads or processes, with its size fixed and checked.
//! - [`Doorbell`]: a counter in such memory that another process can sleep on.
//! - [`ring`]: a single-producer single-consumer queue of frames in a region, whose types hand the
//!   ownership of each slot back and forth, so that no two sides ever touch the same bytes.
//!
//! Nothing here knows about ranks, plans or tensors.

#![allow(
    unsafe_code,
    reason = "this crate is where the unsafe code lives, each site with its proof"
)]

mod doorbell;
pub mod process;
mod region;
#[cfg(not(loom))]
pub mod ring;
mod sync;

pub use doorbell::Doorbell;
pub use region::{Region, RegionError};
