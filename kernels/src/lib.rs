//! Kernels for the arithmetic of collectives and training.
//!
//! Every module holds one operation: what it does as data ([`Reduce`](reduce::Reduce) and its like) and the kernel in
//! CubeCL. With the feature `cuda` it becomes CUDA C++ with a documented argument layout (module `source`), which NVRTC
//! compiles, and runs on a caller's own streams over its own memory and that of its peers (module `launch::stream`).
//!
//! The errors of a function that names none are what the driver says.
//!
//! Without it there is the reference of the reduction alone, whose result is that of the kernel, bit for bit but
//! for the payload of NaN.

#![allow(
    missing_docs,
    reason = "part of Bonfire, not an interface for users; docs say what names do not"
)]
#![deny(unsafe_code)]

mod element;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod pack;
pub mod reduce;
pub mod scale;
#[cfg(feature = "cuda")]
pub mod source;
#[cfg(feature = "cuda")]
mod types;
pub mod variants;

pub use element::{Arithmetic, Element, FloatElement, Fold};
