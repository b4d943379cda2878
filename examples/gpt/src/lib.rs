//! A decoder-only character transformer, trained data-parallel with Bonfire.
//!
//! Read `main.rs`, then `train.rs`: the loop. `model.rs` is the model, which does not depend on ranks.

#![expect(missing_docs, reason = "an example: the names say it")]
#![forbid(unsafe_code)]

pub mod batch;
pub mod corpus;
pub mod model;
pub mod options;
pub mod plan;
pub mod sample;
pub mod train;
