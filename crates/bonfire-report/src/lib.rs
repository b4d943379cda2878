//! Records of a training: progress, curves and a report.
//!
//! [`Journal`] records a run and ends in a [`Report`]: text, JSON and a page with curves. [`EventWriter`] writes for
//! TensorBoard, [`WeightedMean`] combines measurements of ranks.

#![forbid(unsafe_code)]

mod error;
mod journal;
mod metrics;
mod tensorboard;
mod utc;

pub use bonfire_page::{
    Curve, MemoryUse, ModelFlops, PageError, Point, Report, SlowRank, TimeSplit, page,
};
pub use error::ReportError;
pub use journal::{
    Activity, BatchProgress, Figures, Journal, JournalConfig, JournalDisplay, RunFolder,
};
pub use metrics::{WeightedMean, sum_over_ranks};
pub use tensorboard::EventWriter;
