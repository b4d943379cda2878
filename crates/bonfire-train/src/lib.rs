//! Data-parallel training of Burn models.
//!
//! [`Ddp`] holds a model that every rank of a group trains on its own share of the data.
//! [`Checkpoints`] keep a training, and [`World`] is a rank's place in the job: its group
//! and its device.
//!
//! ```no_run
//! use bonfire_train::{Ddp, TrainError, World};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamWConfig, ModuleOptimizer};
//! use burn::tensor::{Distribution, Tensor};
//!
//! fn train(world: &World) -> Result<(), TrainError> {
//!     let device = world.device();
//!     let model: Linear = LinearConfig::new(8, 1).init(&device);
//!     let mut ddp = Ddp::new(model, world)?;
//!     let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
//!     for _ in 0..100 {
//!         // Every rank draws a batch of its own; the gradients are the mean over all of them.
//!         let batch = Tensor::<2>::random([32, 8], Distribution::Default, &device);
//!         let gradients = ddp.backward(|model| model.forward(batch).powi_scalar(2).mean())?;
//!         ddp.step(&mut optimizer, 1e-3, gradients);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What a model learns from is `bonfire-data`, what a training shows of itself is `bonfire-report`;
//! `bonfire-learner` trains with Burn's own learner.

#![deny(unsafe_code)]

mod assignment;
mod bucket;
mod buffers;
mod checkpoint;
mod compression;
mod config;
mod data_parallel;
mod ddp;
mod device;
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "nothing of this build has devices to stay on")
)]
mod device_route;
mod error;
mod fingerprint;
mod freeze;
mod global_batch;
mod gradients;
mod harvest;
mod hooks;
mod host;
mod interrupt;
mod loss;
mod naive;
mod norm;
mod panic;
mod parameters;
mod patience;
mod precision;
#[cfg(feature = "weights")]
mod pretrained;
mod probe;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod raw;
mod readback;
mod reducer;
mod replicate;
mod scaler;
mod schedule;
mod timing;
mod trace;
mod weights;
mod world;

pub use checkpoint::{
    Best, CheckpointError, Checkpoints, CompressionFolder, Keep, Milestone, Training,
};
pub use compression::{CompressionError, CompressionState, GradientCompression, PowerSgdConfig};
pub use config::{BufferSync, DdpConfig, GradientRoute, GradientSync, UnknownGradientRoute};
pub use data_parallel::{DataParallel, Scatter};
pub use ddp::{BucketSummary, Ddp, OwnStep};
pub use device::{DeviceKind, Occupancy, UnknownDeviceKind, require_devices};
pub use error::TrainError;
pub use fingerprint::Difference;
pub use freeze::{UnknownParameter, freeze, freeze_all_but};
pub use global_batch::{GlobalBatch, RateRule};
pub use gradients::{Clip, clip, global_norm};
pub use interrupt::StopRequest;
pub use loss::{IntoLoss, Loss};
#[doc(hidden)]
pub use loss::{Weight, read};
pub use norm::{
    BatchNorm, BatchNormConfig, NormGroup, NormMismatch, RunningStatistic, convert_sync_batch_norm,
    convert_sync_batch_norm_in,
};
pub use precision::Precision;
#[cfg(feature = "weights")]
pub use pretrained::{
    FileError, LoadReport, ShapeDifference, WeightsError, WeightsFile, load_weights,
};
// For the crates that stand on this one.
#[doc(hidden)]
pub use panic::panic_message;
#[doc(hidden)]
pub use parameters::is_autodiff;
#[doc(hidden)]
pub use patience::patient_with_files;
#[doc(hidden)]
pub use probe::is_writable;
pub use scaler::{LossScaler, ScalerConfig};
pub use schedule::{Decay, Schedule, ScheduledRate};
pub use timing::StepTiming;
pub use weights::Last;
pub use world::{Placement, World};
