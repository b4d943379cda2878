//! The CUDA driver, loaded at run time: a program built with this feature runs on machines without
//! it, where [`Driver::load`] says what is missing.
//!
//! - [`Driver`], [`Device`], [`Context`]: what there is, and the primary context of a device, which
//!   Burn uses as well.
//! - [`Stream`], [`Event`], [`StreamOps`]: order. Nothing here orders one stream after another unless
//!   it says so.
//! - [`DeviceRegion`], [`PinnedRegion`], [`ImportedRegion`], [`Span`]: memory. Of device memory there
//!   are never references, only copies, so what a kernel does to it cannot break a promise of Rust.
//! - [`Cubin`], [`Module`]: code, compiled by NVRTC.
//! - [`FoldKernel`], [`SignalKernel`]: the kernels of collectives, which check what they are given.
//!
//! After the CUDA Driver API reference, versions 12.8 to 13.0.

mod context;
mod device;
mod driver;
mod error;
mod event;
mod flags;
mod fold;
mod ipc;
mod memory;
mod module;
pub mod nccl;
pub mod nvml;
mod nvrtc;
mod pci;
mod peer;
mod pinned;
mod scalar;
mod span;
mod stream;
mod stream_ops;
#[cfg(test)]
mod tests;

pub use context::{Context, MemoryInfo};
pub use device::{ComputeCapability, Device};
pub use driver::{CudaVersion, Driver};
pub use error::CudaError;
pub use event::{Event, EventState};
pub use flags::{FlagPage, Link, Signal, SignalKernel};
pub use fold::{FOLD_RANKS_MAX, Fold, FoldKernel, FoldKey, FoldLaunch, OneShotLaunch};
pub use ipc::{ImportedRegion, IpcHandle};
pub use memory::DeviceRegion;
pub use module::{Cubin, Function, Grid, Module};
pub use nvrtc::Nvrtc;
pub use pci::{PciAddress, PciAddressError};
pub use peer::{PeerAccess, peer_access};
pub use pinned::PinnedRegion;
pub use scalar::Scalar;
pub use span::Span;
pub use stream::{Priority, Stream};
pub use stream_ops::StreamOps;
