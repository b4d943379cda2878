//! Image classification, trained data-parallel with Bonfire.
//!
//! Read `main.rs`, then `train.rs`: the loop. `networks.rs` has the networks.

#![expect(missing_docs, reason = "an example: the names say it")]
#![forbid(unsafe_code)]

use std::io::{Write as _, stdout};

pub mod config;
pub mod data;
pub mod evaluate;
pub mod meters;
pub mod model;
mod nearest;
pub mod networks;
pub mod rate;
pub mod tally;
pub mod train;
pub mod weights;

/// Prints a line. Nobody may be there to read it, as behind `| head`; a training goes on all the same.
pub fn show(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}
