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
//!     let mut ddp = Ddp::new(LinearConfig::new(1, 1).init(&device), &world)?; // rank 0's parameters
//!     let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
//!     let mut loss = f64::NAN;
//!     for _ in 0..300 {
//!         let x = Tensor::<2>::random([8, 1], Distribution::Default, &device);
//!         let y = x.clone() * 3.0 + 1.0;
//!         let step = ddp.backward(|model| (model.forward(x) - y).powi_scalar(2).mean())?; // averages
//!         ddp.step(&mut optimizer, 0.3, step.gradients)?;
//!         loss = step.loss.over_ranks(&world)?;
//!     }
//!     let (rank, ranks) = (world.rank(), world.world_size());
//!     println!("rank {rank} of {ranks}: loss {loss:.4}");
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
//! - [`optim`]: clipping, loss scaling, learning rates, optimizers. [`nn`]: batch normalisation over all ranks, and
//!   activations that are computed again instead of kept. [`compression`]: gradients in fewer bytes.
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
    pub use bonfire_checkpoint::record::TensorTable;
    pub use bonfire_checkpoint::{Best, CheckpointError, Keep, Milestone};
    pub use bonfire_train::Checkpoints;
}

/// The communication below: groups of ranks, which know nothing of tensors. The crate `bonfire-collective` has the rest, for
/// programs that use it alone.
pub mod collective {
    pub use bonfire_collective::{
        AlgorithmOverrides, Blocks, CollectiveError, DType, Disagreement, Element, GroupBuffer,
        GroupOptions, InterruptWatch, ProcessGroup, Proposal, Rank, ReduceOp, TransportKind, Work,
        WorldSize, read_flight_records,
    };

    /// What each rank does in a collective, as data: schedules, and their verifier.
    pub mod plan {
        pub use bonfire_plan::{
            Algorithm, Collective, Hosts, Partition, Schedule, ScheduleShape, check,
        };
    }
}

/// Gradients in fewer bytes.
pub mod compression {
    pub use bonfire_train::{CompressionState, GradientCompression, PowerSgdConfig};
}

/// The configuration of a training: TOML, JSON, and DeepSpeed's JSON.
pub mod config {
    pub use bonfire_config::{Config, ConfigErrors, Format, Source};

    pub use crate::args::ConfigArgs;
}

/// Groups of CUDA devices, between which data moves without the host. The crates `bonfire-gpu` and `bonfire-cuda` have the rest.
#[cfg(feature = "cuda-llvm-unfused")]
pub mod cuda {
    pub use bonfire_gpu::{CudaGroup, CudaGroupError, CudaOptions, CudaPath, NcclGroup};
}

/// Samplers and loaders, and pictures with feature `images`.
pub mod data {
    #[cfg(feature = "images")]
    pub use bonfire_data::{
        Cifar10, CifarPart, DummyConfig, DummyPictures, ImageFolder, Normalize, PictureBatch,
        PictureBatches, PictureError, PictureSize, Pictures, Subset, Transform, TransformError,
        Transforms, split_pictures,
    };
    pub use bonfire_data::{
        DataError, DatasetLoader, DistributedSampler, LastBatch, Loader, Order, Prefetch,
        Prefetched, Remainder, SampleWeights, SamplerState,
    };
}

/// Training over slow links: workers train alone for many steps between two exchanges.
pub mod diloco {
    pub use bonfire_train::diloco::{Diloco, DilocoConfig, DilocoError, OuterGradients};
}

/// What [`Ddp`] takes and gives: losses, steps, routes, precision; and [`DataParallel`](ddp::DataParallel).
pub mod ddp {
    pub use bonfire_train::{
        BufferSync, DataParallel, Digest, Gather, GradientRoute, IntoLoss, Layout, Loss, Placement,
        Precision, Scatter, ShardGroup, ShardUnit, Sharding, StepOptions, StepTiming, TrainError,
    };

    pub use crate::freeze::{freeze, freeze_all_but};
}

/// What starts ranks, and what a program may know of how it was started.
pub mod launcher {
    pub use bonfire_launch::{LaunchError, claim_terminal, log_to_stderr, parse_args};
}

/// Burn's own learner on many ranks.
#[cfg(feature = "learner")]
pub mod learner {
    pub use bonfire_learner::{
        CompressionCheckpoints, DistributedTraining, GradientCheck, LearnerConfig, LearnerError,
        Outputs, StepOutput, StepTimings, TensorMessage, counted,
    };
}

/// Layers that see the batches of all ranks, parts of a model that are computed again in the backward pass, and operations
/// of transformers and convolutional networks.
pub mod nn {
    pub use bonfire_parallel::{AttentionMask, self_attention};
    pub use bonfire_train::{
        BatchNorm, BatchNormConfig, InputPlacement, NormGroup, Recompute, RngReplay, conv2d,
        convert_sync_batch_norm, convert_sync_batch_norm_in, embedding, gelu, recompute, relu,
    };
}

/// Between gradients and parameters: clipping, loss scaling, learning rates, and optimizers in one pass over
/// memory, whose names are those of Burn's.
pub mod optim {
    pub use bonfire_optim::{
        AdamConfig, AdamWConfig, Decay, DeferredScale, GlobalBatch, LionConfig, Offload, RateRule,
        ScalerConfig, Schedule, ScheduledRate, SgdConfig,
    };
    pub use bonfire_train::{Clip, Gradients, LossScaler};
}

/// Parts of a model on different ranks of a [mesh](crate::world::Mesh): layers that are divided along its axis `tp`, and
/// collective operations with gradients; pipelines of stages, and the schedules by which they run.
pub mod parallel {
    pub use bonfire_parallel::{
        Axes, ColumnParallelLinear, Output, ParallelError, Pass, Pipeline, PipelineError,
        RowParallelLinear, VocabParallelCrossEntropy, VocabParallelEmbedding, layer_seconds,
        or_end_pass, ring_attention, sequence_parallel, zigzag_ranges, zigzag_split,
    };
    pub use bonfire_train::custom_gradient;

    /// Collective operations of tensors with gradients, along an axis of a mesh.
    pub mod ops {
        pub use bonfire_parallel::ops::{
            Dims, all_to_all, copy, gather, reduce, reduce_scatter, scatter,
        };
    }

    /// Schedules of pipelines, as data: built, chosen, verified and simulated.
    pub mod schedule {
        pub use bonfire_plan::pipeline::{
            Costs, Demand, Kind, PassTimes, Schedule, Shape, choose, partition, simulate, verify,
        };
    }
}

/// Metrics over all ranks, the journal of a run, TensorBoard.
pub mod report {
    pub use bonfire_report::{
        Activity, EventWriter, Figures, Journal, JournalConfig, JournalDisplay, ModelFlops, Report,
        ReportError, WeightedMean, sum_over_ranks,
    };
}

/// Weights from files of PyTorch and safetensors, and into them; models whose parts lie where a
/// [device map](weights::device_map) says.
#[cfg(feature = "weights")]
pub mod weights {
    pub use bonfire_checkpoint::weights::{Export, WeightsFile};
    #[cfg(feature = "flex")]
    pub use bonfire_parallel::{Dispatch, PlaceError, device_of, infer, module_tree};
    pub use bonfire_train::{WeightsError, load_weights, load_weights_into, save_weights};

    /// Where the parts of a model lie: devices, host memory or files, given or inferred.
    pub mod device_map {
        pub use bonfire_plan::device_map::{
            Budgets, DeviceMap, Inference, Inferred, MapError, ModuleTree, Part, PartKind, Place,
            Strategy,
        };
    }
}

/// A rank: its place, its device, its signals; and meshes of ranks.
pub mod world {
    pub use bonfire_launch::StopRequest;
    pub use bonfire_train::{Axis, Cut, DeviceKind, Grid, Mesh, MeshError, MeshShape};
}
