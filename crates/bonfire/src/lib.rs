//! Bonfire trains [Burn](https://burn.dev) models on many devices: one process or thread per device,
//! without NCCL and without Python.
//!
//! A program is its own launcher. Started as `./train --nproc 4` this one trains on four ranks:
//!
//! ```no_run
//! use bonfire::prelude::*;
//! use burn::nn::LinearConfig;
//! use burn::optim::{ModuleOptimizer, SgdConfig};
//! use burn::tensor::{Distribution, Tensor};
//!
//! fn main() -> bonfire::Result<()> {
//!     bonfire::launch(train)
//! }
//!
//! fn train(world: World) -> bonfire::Result<()> {
//!     let device = world.device().autodiff();
//!     let mut ddp = Ddp::new(LinearConfig::new(1, 1).init(&device), &world)?; // rank 0's parameters everywhere
//!     let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
//!     for _ in 0..100 {
//!         let x = Tensor::<2>::random([8, 1], Distribution::Default, &device);
//!         let y = x.clone() * 3.0;
//!         let step = ddp.backward(|model| (model.forward(x) - y).powi_scalar(2).mean())?; // averages during backward
//!         ddp.step(&mut optimizer, 0.1, step.gradients)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What a training program names is here, and in the [`prelude`]:
//!
//! - [`launch()`] and [`launch_with`] start the ranks, [`spawn`] runs them as threads.
//! - [`agree_on_next_step`] has all ranks end together: with their data, an error, or a signal.
//! - [`all_or_none`] prints an error of any rank once, and ends all ranks.
//! - [`World`] is what a rank knows: its place, its device, its group.
//! - [`prepare`](trainer::prepare) makes a training of a model, its data and a file of
//!   [configuration](config::Config); [`Ddp`] is for a loop of one's own.
//! - [`Ddp`] wraps a model and averages its gradients while backward still runs.
//!
//! The rest is in modules:
//!
//! - [`ddp`]: losses, steps, precision; `DataParallel` is several devices of one process, without ranks.
//! - [`optim`]: clipping, loss scaling, learning rates, optimizers. [`nn`]: batch normalisation over all
//!   ranks, and activations that are computed again instead of kept.
//!   [`compression`]: gradients in fewer bytes.
//! - [`data`]: samplers and loaders. [`report`]: metrics over all ranks, the journal of a run.
//! - [`checkpoint`]: a training saved and brought back. `weights`: files of PyTorch and safetensors,
//!   and models on several devices, in host memory and in their files.
//! - [`plan`](mod@plan): what memory each rank takes, before a training runs.
//! - [`parallel`]: parts of a model on different ranks.
//! - `learner`: Burn's own learner on many ranks.
//! - [`collective`]: the communication below, which knows nothing of tensors. `cuda`: between GPUs.
//! - [`world`] and [`launcher`]: devices, and what starts ranks.

#![forbid(unsafe_code)]

mod all_or_none;
mod args;
mod error;
mod freeze;
mod launch;
mod log;
mod next_step;
pub mod plan;
pub mod prelude;
mod rank;
mod threads;
pub mod trainer;

#[cfg(feature = "cuda-unfused")]
pub use bonfire_gpu as cuda;
pub use bonfire_plan::UnknownName;
pub use bonfire_train::{Ddp, DdpConfig, Step, World};

pub use all_or_none::all_or_none;
pub use args::{DeviceChoice, LaunchArgs};
pub use error::{Error, Result};
pub use launch::{launch, launch_with};
pub use next_step::{NextStep, agree_on_next_step};
pub use threads::{SpawnOptions, spawn, spawn_with};

/// A training saved, and brought back on as many ranks as there are.
pub mod checkpoint {
    pub use bonfire_checkpoint::record::Whole;
    pub use bonfire_checkpoint::{
        Best, CheckpointError, Draft, Folder, Found, Keep, Milestone, is_writable,
    };
    pub use bonfire_train::{Checkpoints, Resumed};
}

/// The communication below: groups of ranks, which know nothing of tensors.
pub mod collective {
    pub use bonfire_collective::*;
    /// What each rank does in a collective, as data: schedules, their verifier, estimates and the simulator.
    pub use bonfire_plan as plan;
}

/// Gradients in fewer bytes.
pub mod compression {
    pub use bonfire_train::{
        CompressionError, CompressionState, GradientCompression, PowerSgdConfig,
    };
}

/// The configuration of a training: TOML, JSON, and DeepSpeed's JSON.
pub mod config {
    pub use bonfire_config::*;

    pub use crate::args::ConfigArgs;
}

/// Samplers and loaders, and pictures with feature `images`.
pub mod data {
    pub use bonfire_data::*;
}

/// Training over slow links: workers train alone for many steps between two exchanges.
pub mod diloco {
    pub use bonfire_train::diloco::*;
}

/// What [`Ddp`] takes and gives: losses, steps, routes, precision; and [`DataParallel`](ddp::DataParallel).
pub mod ddp {
    pub use bonfire_train::{
        BucketSummary, BufferSync, DataParallel, Ddp, DdpConfig, Difference, Digest, Division,
        Gather, GradientRoute, GradientSync, Graphs, IntoLoss, Last, Layout, Loss, MicroStep,
        OwnStep, Placement, Precision, Scatter, ShardGroup, ShardUnit, Sharding, Step, StepTiming,
        TrainError, is_autodiff,
    };

    pub use crate::freeze::{UnknownParameter, freeze, freeze_all_but};
}

/// What starts ranks, and what a program may know of how it was started.
pub mod launcher {
    pub use bonfire_launch::*;
}

/// Burn's own learner on many ranks.
#[cfg(feature = "learner")]
pub mod learner {
    pub use bonfire_learner::*;
}

/// Layers that see the batches of all ranks, parts of a model that are computed again in the backward pass, and operations
/// of transformers and convolutional networks.
pub mod nn {
    pub use bonfire_parallel::{AttentionMask, self_attention};
    pub use bonfire_train::{
        BatchNorm, BatchNormConfig, InputPlacement, NormGroup, NormMismatch, Recompute, RngReplay,
        RunningStatistic, SegmentInputs, conv2d, convert_sync_batch_norm,
        convert_sync_batch_norm_in, gelu, recompute, relu,
    };
}

/// Between gradients and parameters: clipping, loss scaling, learning rates, and optimizers in one pass over
/// memory, whose names are those of Burn's.
pub mod optim {
    pub use bonfire_optim::*;
    pub use bonfire_train::{Clip, Gradients, LossScaler};
}

/// Parts of a model on different ranks of a [mesh](crate::world::Mesh): layers that are divided along its axis `tp`, and
/// collective operations with gradients; pipelines of stages, and the schedules by which they run.
pub mod parallel {
    pub use bonfire_parallel::*;
    pub use bonfire_plan::pipeline as schedule;
    pub use bonfire_train::{backward_from, custom_gradient};
}

/// Metrics over all ranks, the journal of a run, TensorBoard.
pub mod report {
    pub use bonfire_report::*;
}

/// Weights from files of PyTorch and safetensors, and into them; models whose parts lie where a
/// [device map](weights::device_map) says.
#[cfg(feature = "weights")]
pub mod weights {
    pub use bonfire_train::{WeightsError, load_weights, load_weights_into, save_weights};
    pub use bonfire_weights::*;
}

/// A rank: its place, its device, its signals; and meshes of ranks.
pub mod world {
    pub use bonfire_collective::panic_message;
    pub use bonfire_launch::StopRequest;
    pub use bonfire_train::{
        Axis, Coordinates, Cut, DeviceKind, Grid, LocalRank, Mesh, MeshError, MeshShape, Occupancy,
        World, patient_with_files, require_devices,
    };
}
