//! A stand-in for CubeCL's LLVM back end.
//!
//! `cubecl-cuda` always compiles two ways from a kernel to the GPU: through CUDA C++ and NVRTC, and
//! through LLVM. The second lives in the published `cubecl-llvm`, whose build script downloads a
//! prebuilt LLVM. This workspace uses the first only, so `[patch.crates-io]` in the root manifest
//! puts this crate in the place of the published one: the build needs no network, and a kernel
//! that is sent to LLVM all the same gets an error that says what to do. A patch acts in this
//! workspace alone; a program that depends on the published crates gets the real back end.
//!
//! It offers exactly the names that `cubecl-cuda` 0.11.3 refers to, under the feature `nvptx`, and
//! must never offer more: whatever else needs LLVM has to fail to compile here, not at run time.
//! The types that only LLVM could fill have no values, so no code path can pretend that it did.

#![forbid(unsafe_code)]

#[cfg(feature = "nvptx")]
mod compiler;
#[cfg(feature = "nvptx")]
pub mod nvptx;
#[cfg(feature = "nvptx")]
pub mod shared;

#[cfg(feature = "nvptx")]
pub use compiler::{LlvmTarget, NvptxModule, PlironArtifact, PlironCompiler, PlironOptions};
