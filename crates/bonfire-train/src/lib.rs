//! Data-parallel training of Burn models.
//!
//! [`Ddp`] holds a model that every rank of a group trains on its own share of the data.
//! [`DistributedSampler`] and [`Loader`] deal the data, [`WeightedMean`] combines what ranks
//! measure, and [`World`] is a rank's place in the job: its group and its device.
//!
//! This is the only crate of the workspace that knows Burn.

#![forbid(unsafe_code)]

mod assignment;
mod bucket;
mod config;
mod ddp;
mod error;
mod fingerprint;
mod harvest;
mod hooks;
mod host;
mod loader;
mod loss;
mod metrics;
mod naive;
mod parameters;
mod readback;
mod reducer;
mod replicate;
mod sampler;
mod timing;
mod trace;
mod weights;
mod world;

pub use config::{DdpConfig, GradientSync};
pub use ddp::{BucketSummary, Ddp};
pub use error::TrainError;
pub use fingerprint::Difference;
pub use loader::{EpochBatches, LastBatch, Loader};
pub use loss::{IntoLoss, Loss};
pub use metrics::{WeightedMean, sum_over_ranks};
pub use sampler::{DistributedSampler, Order, Remainder, SamplerConfig};
pub use timing::StepTiming;
pub use world::{DeviceKind, Placement, UnknownDeviceKind, World};
