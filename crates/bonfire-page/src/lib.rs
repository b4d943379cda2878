//! The result of a training: [`Report`] is text, JSON and, with [`page()`], HTML with curves.
//!
//! It knows nothing of Burn or of ranks that run: `bonfire report` makes pages of folders alone.

#![forbid(unsafe_code)]

mod error;
mod flops;
mod page;
mod quantity;
mod report;
mod stored;
mod time;

pub use error::PageError;
pub use flops::ModelFlops;
pub use page::page;
pub use report::{Curve, MemoryUse, Point, Report};
pub use time::{SlowRank, TimeSplit};
