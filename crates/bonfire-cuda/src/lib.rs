//! The CUDA driver, loaded at run time: a program built with this crate runs on machines without
//! it, where [`Driver::load`] says what is missing.
//!
//! - [`Driver`], [`Device`], [`Context`]: what there is, and the primary context of a device, which
//!   Burn uses as well.
//! - [`Stream`], [`Event`], [`StreamOps`]: order. Nothing here orders one stream after another unless
//!   it says so.
//! - [`DeviceRegion`], [`PinnedRegion`], [`HostMemory`], [`ImportedRegion`], [`Span`]: memory. Of device memory there
//!   are never references, only copies, so what a kernel does to it cannot break a promise of Rust.
//! - [`Nvrtc`], [`Cubin`], [`Module`], [`Function`]: code, compiled by NVRTC. What a kernel touches is the
//!   promise of whoever launches it.
//! - [`OneShotKernel`], [`SignalKernel`]: kernels that wait for other ranks, which check what they are given.
//!
//! After the CUDA Driver API reference, versions 12.8 to 13.0.

#![allow(
    unsafe_code,
    reason = "the libraries of NVIDIA are C, each call with its proof"
)]

mod context;
mod device;
mod driver;
mod error;
mod event;
mod flags;
mod foreign;
mod host_memory;
mod ipc;
mod memory;
mod module;
pub mod nccl;
pub mod nvml;
mod nvrtc;
mod one_shot;
mod pci;
mod peer;
mod pinned;
mod scalar;
mod span;
mod stream;
mod stream_ops;
#[cfg(test)]
mod tests;
mod toolkit;

pub use context::{Context, MemoryInfo};
pub use device::{CONNECTIONS_VARIABLE, ComputeCapability, Device};
pub use driver::{CudaVersion, Driver};
pub use error::CudaError;
pub use event::{Event, EventState};
pub use flags::{AbortFlag, FlagPage, Link, Signal, SignalKernel};
pub use host_memory::HostMemory;
pub use ipc::{ImportedRegion, IpcHandle};
pub use memory::DeviceRegion;
pub use module::{AddressLaunch, BufferLaunch, Cubin, Function, Grid, Module};
pub use nvrtc::Nvrtc;
pub use one_shot::{Fold, OneShotKernel, OneShotKey, OneShotLaunch, RANKS_MAX};
pub use pci::{PciAddress, PciAddressError};
pub use peer::{PeerAccess, peer_access};
pub use pinned::PinnedRegion;
pub use scalar::Scalar;
pub use span::Span;
pub use stream::{Priority, Stream};
pub use stream_ops::StreamOps;
pub use toolkit::Toolkit;
