//! The CUDA driver, loaded at run time: a program built with this crate runs on machines without
//! it, where [`Driver::load`] says what is missing.
//!
//! - [`Driver`], [`Device`], [`Context`]: what there is, and the primary context of a device, which Burn uses as well.
//! - [`Stream`], [`Event`], [`StreamOps`]: order. Nothing here orders one stream after another unless it says so.
//! - [`DeviceRegion`], [`PinnedRegion`], [`HostMemory`], [`ImportedRegion`], [`Span`]: memory. Of device memory there
//!   are never references, only copies, so what a kernel does to it cannot break a promise of Rust.
//! - [`Nvrtc`], [`Cubin`], [`Module`], [`Function`]: code, compiled by NVRTC. What a kernel touches
//!   is the promise of the code that launches it.
//!
//! The errors of a function that names none are what the driver or the library says.
//!
//! After the CUDA Driver API reference, versions 12.8 to 13.0.

#![allow(
    missing_docs,
    reason = "part of Bonfire, not an interface for users; docs say what names do not"
)]
#![allow(unsafe_code, reason = "the libraries of NVIDIA are C, each call with its proof")]

mod driver;
mod error;
mod memory;
mod module;
pub mod nccl;
pub mod nvml;
mod stream;

pub use driver::Driver;
pub use driver::context::{Context, MemoryInfo};
pub use driver::device::{CONNECTIONS_VARIABLE, ComputeCapability, Device};
pub use driver::event::{Event, EventState};
pub use driver::pci::{PciAddress, PciAddressError};
pub use driver::peer::{PeerAccess, peer_access};
pub use error::CudaError;
pub use error::version::CudaVersion;
pub use memory::DeviceRegion;
pub use memory::host_memory::HostMemory;
pub use memory::ipc::{ImportedRegion, IpcHandle};
pub use memory::pinned::PinnedRegion;
pub use memory::span::Span;
pub use module::nvrtc::{EXACT_OPTIONS, Nvrtc};
pub use module::toolkit::Toolkit;
pub use module::{AddressLaunch, BufferLaunch, Cubin, Function, Grid, Module};
pub use stream::stream_ops::StreamOps;
pub use stream::{Priority, Stream};
