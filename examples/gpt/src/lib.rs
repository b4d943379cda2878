//! A decoder-only character transformer, trained data-parallel with Bonfire.
//!
//! Read `main.rs`, then `train.rs`: the loop. `model.rs` is the model and knows nothing of ranks.

#![forbid(unsafe_code)]

pub mod batch;
pub mod checkpoint;
pub mod data;
pub mod model;
pub mod optimizer;
pub mod options;
pub mod plan;
pub mod sample;
pub mod text;
pub mod train;
