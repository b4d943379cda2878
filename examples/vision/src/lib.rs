//! Image classification, trained data-parallel with Bonfire.
//!
//! `resnet.rs` and `botnet.rs` are the networks and know nothing of ranks.

#![forbid(unsafe_code)]

pub mod attention;
pub mod block;
pub mod botnet;
pub mod config;
mod draw;
pub mod meters;
pub mod model;
mod nearest;
pub mod norm;
pub mod optimizer;
pub mod rate;
pub mod resnet;
pub mod tally;
