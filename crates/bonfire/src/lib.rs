//! Bonfire trains [Burn](https://burn.dev) models on many devices: one process or thread per device,
//! without NCCL and without Python.
//!
//! A program is its own launcher. Started as `./train --nproc 4` this one trains on four ranks:
//!
//! ```no_run
//! use bonfire::prelude::*;
//!
//! fn main() -> bonfire::Result<()> {
//!     bonfire::launch(train)
//! }
//!
//! fn train(world: World) -> bonfire::Result<()> {
//!     let mut losses = WeightedMean::new();
//!     losses.add(f64::from(world.rank().get()), 1);
//!     println!("{:?}", losses.over_ranks(&world)?);
//!     Ok(())
//! }
//! ```
//!
//! - [`launch`] and [`launch_with`] start the ranks, [`spawn`] runs them as threads.
//! - [`next_turn`] has all ranks end together: with their data, an error, or a signal.
//! - [`all_or_none`] makes the error of any rank one line, and the end of all.
//! - [`World`] is what a rank knows: its place, its device, its group.
//! - [`Ddp`] wraps a model and averages its gradients while backward still runs.
//! - [`convert_sync_batch_norm`] makes each [`BatchNorm`] of a model see the batches of all ranks as one.
//! - [`DistributedSampler`] and [`Loader`] deal out the data, [`WeightedMean`] collects the metrics.
//! - [`Checkpoints`] save a training and bring it back, [`Schedule`] and [`RateRule`] say its learning
//!   rate, [`LossScaler`] keeps small gradients in 16 bits.
//! - [`GradientCompression`] sends less than the gradients, [`Precision`] computes in 16 bits.
//! - [`DataParallel`] is several devices of one process, without ranks.
//! - With feature `learner`, `DistributedTraining` and `strategy` train with Burn's own learner.
//! - [`ProcessGroup`] is the communication below, which knows nothing of tensors.

#![forbid(unsafe_code)]

mod all_or_none;
mod args;
mod error;
mod launch;
mod log;
pub mod prelude;
mod rank;
mod threads;
mod turn;

pub use bonfire_collective::*;
pub use bonfire_data::*;
#[cfg(feature = "cuda-unfused")]
pub use bonfire_gpu as cuda;
pub use bonfire_launch::*;
#[cfg(feature = "learner")]
pub use bonfire_learner::*;
pub use bonfire_report::*;
pub use bonfire_train::*;

pub use all_or_none::all_or_none;
pub use args::LaunchArgs;
pub use error::{Error, Result};
pub use launch::{launch, launch_with};
pub use threads::{SpawnOptions, spawn, spawn_with};
pub use turn::{Turn, next_turn};
