//! A configuration, resolved: plain values with DeepSpeed's meaning.

use std::path::PathBuf;

use super::read::Note;
use super::schedule::Schedule;
use crate::Source;
use crate::batch::BatchSizes;
use crate::settings::{OffloadTo, Precision, Wire};

/// The content of a DeepSpeed JSON file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeepSpeedConfig {
    /// The number of samples in a step.
    pub batch: BatchSizes,
    /// The optimizer, where the file names one.
    pub optimizer: Option<Optimizer>,
    /// The learning rates, where the file names a scheduler.
    pub schedule: Option<Schedule>,
    /// The largest norm of all gradients; 0 disables it. DeepSpeed's default became 1.0.
    pub gradient_clipping: f64,
    /// The data type of forward and backward passes.
    pub precision: Precision,
    /// The way the loss is scaled, under fp16.
    pub loss_scale: Option<LossScale>,
    /// Makes all ranks skip a step whose gradients are infinite or NaN. Under fp16 they always do.
    pub skip_overflow: bool,
    /// The data type in which gradients are communicated.
    pub communication: Wire,
    /// ZeRO: what is sharded and offloaded.
    pub zero: Zero,
    /// The ranks among which the layers are cut into stages, if the file says.
    pub pipeline_stages: Option<u32>,
    /// The ranks among which each layer is divided; 0 if none is.
    pub tensor_parallel: u32,
    /// Keeps the inputs of recomputed blocks in host memory.
    pub cpu_checkpointing: bool,
    /// Steps between two lines of progress.
    pub steps_per_print: Option<u64>,
    /// The folder of TensorBoard's files, if it is on.
    pub tensorboard: Option<PathBuf>,
    /// Leaves out the last, smaller batch of an epoch.
    pub drop_last: bool,
    /// Keys without effect, each with the reason, and old names.
    pub notes: Vec<Note>,
    /// Every value: its key, its JSON and its source.
    pub resolved: Vec<Resolved>,
}

/// A value with its key and source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The path of the key, with dots.
    pub path: String,
    /// The value as a JSON text.
    pub value: String,
    /// The source of the value.
    pub source: Source,
}

/// The way the loss is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// Scaled by this constant factor.
    Fixed(f64),
    /// Scaled by a factor that adapts itself.
    Dynamic {
        /// The first factor: 2 to the power of `initial_scale_power`.
        initial: f64,
        /// Steps without an overflow until it doubles.
        window: u64,
        /// Number of overflows until the scale halves.
        hysteresis: u64,
        /// Counts only overflows in a row.
        consecutive_hysteresis: bool,
        /// The lower bound of the loss scale.
        min: f64,
    },
}

/// An optimizer with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Optimizer {
    /// The update rule, which decides the other values that apply.
    pub rule: Rule,
    /// The learning rate, where no schedule sets another.
    pub lr: f64,
    /// Weight decay, as the rule applies it.
    pub weight_decay: f64,
}

/// The update rule of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// Adam. DeepSpeed's `Adam` decays parameters as AdamW does, unless `adam_w_mode` is false.
    Adam {
        /// Decay rates of both moments.
        betas: (f64, f64),
        /// Added to the root of the second moment.
        eps: f64,
        /// Decays parameters apart from gradients, as in AdamW.
        decoupled: bool,
    },
    /// Stochastic gradient descent, with optional momentum.
    Sgd {
        /// Momentum factor; 0 disables the moment.
        momentum: f64,
        /// The fraction of a gradient that does not enter the moment.
        dampening: f64,
        /// Enables Nesterov momentum for the SGD rule.
        nesterov: bool,
    },
    /// The Lion rule: sign updates from one moment.
    Lion {
        /// Decay rates of the moment: for the step, and for itself.
        betas: (f64, f64),
    },
    /// Muon for matrices, and Adam for all else.
    Muon {
        /// Momentum factor of the Muon rule.
        momentum: f64,
        /// Decay rates of Adam's two moments.
        betas: (f64, f64),
        /// Added to the root of the second moment.
        eps: f64,
    },
}

/// The ZeRO stage and the places of its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Zero {
    /// 0: nothing; 1: the optimizer's state; 2: gradients, too; 3: parameters, too.
    pub stage: u8,
    /// Elements of a bucket of gradients.
    pub reduce_bucket_size: u64,
    /// Ranks among which parameters are gathered (`zero_hpz_partition_size`, `mics_shard_size`), if not all.
    pub shard_among: Option<u64>,
    /// The place of the optimizer's state.
    pub offload_optimizer: OffloadTo,
    /// The place of the parameters.
    pub offload_param: OffloadTo,
}
