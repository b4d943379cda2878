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

/// Prints a line. A closed or full output, as behind `| head`, does not end a training.
pub fn show(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}
