//! Kernels on devices: what the modules of the kernels only describe is run here.
//!
//! - [`stream`], feature `cuda`: on streams of the CUDA driver, over memory of this rank and of its
//!   peers. Collectives use it.
//! - [`adapter`], feature `wgpu`: through CubeCL's own launch, in memory that CubeCL manages.
//!
//! These two files are the only ones of the crate that use `unsafe`: no kernel checks its indices,
//! so whoever launches one vouches for the lengths of its buffers. Every function here compares
//! them before it does.

#[cfg(feature = "wgpu")]
#[allow(unsafe_code)]
pub mod adapter;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod stream;
