//! Image classification, trained data-parallel with Bonfire.
//!
//! Read `main.rs`, then `train.rs`: the loop. `trunk.rs`, `resnet.rs` and `botnet.rs`
//! are the networks and know nothing of ranks.

#![forbid(unsafe_code)]

pub mod attention;
pub mod block;
pub mod botnet;
pub mod config;
pub mod data;
mod draw;
pub mod ending;
pub mod evaluate;
pub mod meters;
pub mod model;
mod nearest;
pub mod norm;
pub mod optimizer;
mod progress;
pub mod rate;
pub mod resnet;
pub mod tally;
pub mod train;
pub mod trunk;
pub mod weights;
