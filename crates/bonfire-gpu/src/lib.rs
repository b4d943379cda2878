//! Collectives between GPUs: kernels that read and write the memory of all ranks, ordered by streams.
//!
//! A `CudaGroup` stands on a [`ProcessGroup`](bonfire_collective::ProcessGroup), over which its ranks set up: they
//! share buffers (`CudaBuffer`; by address between threads of one process, through CUDA IPC or by descriptors between
//! processes), look whether they really reach each other's memory, and agree on the kernels. After that
//! no host takes part in a collective but to queue it.
//!
//! The algorithms (`CudaAlgorithm`) are schedules of `bonfire-plan` in place, step by step, or one of them in one
//! kernel: direct and two-shot fold in rank order, by the zero-copy schedule; the chain in canonical order, too; the
//! ring in the order of that on the CPU; the one-shot in packets that carry their own flags.
//!
//! Which of them an all-reduce takes follows from its size and from how fast each rank reads every other's
//! memory, which is measured when the group is formed (`CudaChoice`).
//!
//! Where two ranks do not reach each other's memory, the group's data go through host memory: the group on
//! the CPU reduces there.
//!
//! `NcclGroup` has the same operations over NVIDIA's NCCL, which is found when the program runs.
//!
//! Ranks may share a device, which is slower than a device each and exists for tests. Nothing here knows of tensors.

#![cfg(feature = "cuda")]
#![forbid(unsafe_code)]

mod device;
mod error;
mod group;
mod life;
mod nccl_group;
mod options;
mod program;
mod request;
mod run;
mod setup;

pub use bonfire_cuda::{
    CONNECTIONS_VARIABLE, ComputeCapability, Context, CudaError, CudaVersion, Device, DeviceRegion,
    Driver, Event, EventState, MemoryInfo, Nvrtc, PciAddress, PciAddressError, PeerAccess,
    Priority, Span, Stream, StreamOps, Toolkit, nccl, nvml, peer_access,
};
pub use device::neighbours::Neighbours;
pub use error::{CudaGroupError, Result};
pub use group::CudaGroup;
pub use group::buffer::CudaBuffer;
pub use nccl_group::{NcclBuffer, NcclGroup};
pub use options::{CudaAlgorithm, CudaOptions, CudaPath, CudaSync};
pub use program::choice::CudaChoice;
pub use program::pair_bandwidths::PairBandwidths;
pub use request::elements::Elements;
