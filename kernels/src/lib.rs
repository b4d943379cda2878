//! Kernels for the arithmetic of collectives and training, each with its reference on the CPU.
//!
//! Every module holds one operation: what it does as data ([`Reduce`](reduce::Reduce) and its
//! like), a `reference` in plain Rust, and the kernel in CubeCL. A kernel runs in two ways:
//!
//! - feature `cuda`: as CUDA C++ with a documented argument layout (module `source`), which NVRTC
//!   compiles, on a caller's own streams over its own memory and that of its peers
//!   (module `launch::stream`);
//! - feature `wgpu`: through CubeCL's launch on any adapter of wgpu, in memory that CubeCL manages
//!   (module `launch::adapter`).
//!
//! Without features there are the references alone. A kernel's result is its reference's result,
//! bit for bit but for the payload of NaN; where an adapter of wgpu may stray is said at the kernel.

#![deny(unsafe_code)]

pub mod cast;
pub mod copy;
mod element;
pub mod finite;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub mod launch;
pub mod norm;
pub mod pack;
pub mod reduce;
pub mod scale;
#[cfg(feature = "cuda")]
pub mod source;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod types;
pub mod variants;

pub use element::{Arithmetic, Element, FloatArithmetic, FloatElement, Fold};
