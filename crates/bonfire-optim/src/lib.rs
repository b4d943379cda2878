//! Optimizers that read and write memory once, and learning rates.
//!
//! They are Burn's own in arithmetic, state and use: a configuration makes a
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), or the optimizer of a parameter group.

#![forbid(unsafe_code)]

mod fused;
mod global_batch;
mod schedule;

pub use fused::adam::{Adam, AdamConfig};
pub use fused::adamw::{AdamW, AdamWConfig};
pub use fused::lion::{Lion, LionConfig};
pub use fused::sgd::{Sgd, SgdConfig};
pub use global_batch::{GlobalBatch, RateRule};
pub use schedule::{Decay, Schedule, ScheduledRate};
