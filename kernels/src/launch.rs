//! Kernels on devices: what the modules of the kernels only describe is run here.
//!
//! - [`stream`]: those on streams of the CUDA driver, over memory of this rank and of its peers.
//! - [`flags`], [`one_shot`]: those that wait for other ranks, in CUDA C++.
//!
//! Its files are the only ones of the crate that use `unsafe`: no kernel checks its indices, so the code that launches
//! one vouches for the lengths of its buffers. Every function here compares them before it does.

#[allow(unsafe_code)]
pub mod flags;
#[allow(unsafe_code)]
pub mod one_shot;
#[allow(unsafe_code)]
pub mod stream;
