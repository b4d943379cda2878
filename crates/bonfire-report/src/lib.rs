//! Records of a training: progress, curves and a report.
//!
//! [`Report`] is the result of a training: text, JSON and, with [`page()`], HTML with curves. It needs neither Burn
//! nor running ranks: `bonfire report` makes pages from folders alone.
//!
//! With the feature `journal`, which is on by default, [`Journal`] records a run and ends in a report, [`EventWriter`]
//! writes for TensorBoard, and [`WeightedMean`] combines measurements of ranks.

#![forbid(unsafe_code)]

mod error;
mod flops;
#[cfg(feature = "journal")]
mod journal;
#[cfg(feature = "journal")]
mod metrics;
mod page;
mod quantity;
mod report;
mod stored;
#[cfg(feature = "journal")]
mod tensorboard;
mod time;
#[cfg(feature = "journal")]
mod utc;

pub use error::PageError;
#[cfg(feature = "journal")]
pub use error::ReportError;
pub use flops::ModelFlops;
#[cfg(feature = "journal")]
pub use journal::{
    Activity, BatchProgress, Figures, Journal, JournalConfig, JournalDisplay, RunFolder,
};
#[cfg(feature = "journal")]
pub use metrics::{WeightedMean, sum_over_ranks};
pub use page::page;
pub use report::{Curve, MemoryUse, Point, Report};
#[cfg(feature = "journal")]
pub use tensorboard::EventWriter;
pub use time::{SlowRank, TimeSplit};
