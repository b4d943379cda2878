//! Data-parallel training of Burn models.
//!
//! [`Ddp`] holds a model that every rank of a group trains on its own share of the data. [`Checkpoints`] keep a
//! training, and [`World`] is a rank's place in the job: its group and its device.
//!
//! ```no_run
//! # mod bonfire { pub use bonfire_train::{Ddp, World}; pub mod ddp { pub use bonfire_train::*; } }
//! use bonfire::{Ddp, World};
//! use bonfire::ddp::TrainError;
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
//!         // Every rank draws its own batch; the gradients are the mean over all of them.
//!         let batch = Tensor::<2>::random([32, 8], Distribution::Default, &device);
//!         let step = ddp.backward(|model| model.forward(batch).powi_scalar(2).mean())?;
//!         ddp.step(&mut optimizer, 1e-3, step.gradients)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Training data is in `bonfire-data`, reports are in `bonfire-report`; `bonfire-learner` trains with Burn's own
//! learner.

#![deny(unsafe_code)]

mod checkpoint;
mod compression;
mod config;
mod ddp;
pub mod diloco;
mod error;
mod loss;
mod nn;
mod optim;
mod parameters;
mod reducer;
mod rehearsal;
mod values;
mod world;

#[cfg(feature = "weights")]
pub use checkpoint::pretrained::{WeightsError, load_weights, load_weights_into, save_weights};
pub use checkpoint::{Checkpoints, Resumed};
pub use compression::{CompressionError, CompressionState, GradientCompression, PowerSgdConfig};
pub use config::{BufferSync, DdpConfig, DeviceKind, GradientRoute, Occupancy, Precision};
pub use ddp::data_parallel::{DataParallel, Gather, Graphs, Scatter};
pub use ddp::{BucketSummary, Ddp, Digest, MicroStep, OwnStep, Step, StepOptions};
pub use error::{Difference, NormMismatch, TrainError};
pub use loss::weights::Last;
pub use loss::{IntoLoss, Loss};
pub use nn::custom_gradient::{backward_from, custom_gradient};
pub use nn::{
    BatchNorm, BatchNormConfig, InputPlacement, Recompute, RngReplay, RunningStatistic,
    SegmentInputs, conv2d, convert_sync_batch_norm, convert_sync_batch_norm_in, embedding, gelu,
    recompute, relu,
};
pub use optim::gradients::{Clip, Gradients};
pub use optim::scaler::LossScaler;
#[doc(hidden)]
pub use parameters::{is_autodiff, trainable};
#[doc(hidden)]
pub use reducer::device_route::transfer::{Arrival, Transfer, begin, transfer};
pub use reducer::timing::StepTiming;
pub use rehearsal::{outline, rehearse, rehearse_among, rehearse_work};
pub use world::device::require_devices;
pub use world::exchange::group::NormGroup;
pub use world::mesh::Mesh;
#[doc(hidden)]
pub use world::timeouts::with_file_timeout;
pub use world::{LocalRank, World};

pub use bonfire_checkpoint::record::TensorTable;
pub use bonfire_checkpoint::{Best, CheckpointError, Keep, Milestone};
pub use bonfire_collective::Resident;
pub use bonfire_plan::{
    Axis, Coordinates, Cut, Division, Grid, Layout, MeshError, MeshShape, Placement, ShardGroup,
    ShardUnit, Sharding,
};
