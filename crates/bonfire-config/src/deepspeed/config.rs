//! A configuration, resolved: plain values with DeepSpeed's meaning.

use std::path::PathBuf;

use super::read::Note;
use super::schedule::Schedule;
use crate::Source;
use crate::batch::BatchSizes;

/// What a DeepSpeed JSON file asks for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeepSpeedConfig {
    /// How many samples a step has.
    pub batch: BatchSizes,
    /// The optimizer, where the file names one.
    pub optimizer: Option<Optimizer>,
    /// The learning rates, where the file names a scheduler.
    pub schedule: Option<Schedule>,
    /// The largest norm of all gradients; 0 is no limit. DeepSpeed's default became 1.0.
    pub gradient_clipping: f64,
    /// What passes compute in.
    pub precision: Precision,
    /// Whether all ranks skip a step whose gradients are infinite or NaN. Under fp16 they always do.
    pub skip_overflow: bool,
    /// What gradients travel in, if not in their own type.
    pub communication: Option<DType>,
    /// What is sharded.
    pub zero: Zero,
    /// Whether what blocks begin with that are computed again is kept in the memory of the host.
    pub cpu_checkpointing: bool,
    /// Steps between two lines of progress.
    pub steps_per_print: Option<u64>,
    /// The folder of TensorBoard's files, if it is on.
    pub tensorboard: Option<PathBuf>,
    /// Whether the last, smaller batch of an epoch is left out.
    pub drop_last: bool,
    /// What changes nothing, and why, and old names.
    pub notes: Vec<Note>,
    /// Every value: its key, as JSON, and where it is from.
    pub resolved: Vec<Resolved>,
}

/// A value and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The key.
    pub path: String,
    /// The value, as JSON.
    pub value: String,
    /// Where it is from.
    pub source: Source,
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// 32 bits.
    F32,
    /// IEEE's 16 bits.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
}

/// What passes compute in. Parameters and moments have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// bf16.
    Bf16,
    /// f16, with a scaled loss.
    F16(LossScale),
}

/// How the loss is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// By this factor.
    Fixed(f64),
    /// By one that adapts itself.
    Dynamic {
        /// The first factor: 2 to the power of `initial_scale_power`.
        initial: f64,
        /// Steps without an overflow until it doubles.
        window: u64,
        /// At which overflow it halves.
        hysteresis: u64,
        /// Whether only overflows in a row count.
        consecutive_hysteresis: bool,
        /// It never falls below this.
        min: f64,
    },
}

/// An optimizer with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Optimizer {
    /// Its rule.
    pub rule: Rule,
    /// The learning rate, where no schedule says another.
    pub lr: f64,
    /// How much of a parameter is taken away each step, in the way of the rule.
    pub weight_decay: f64,
}

/// The rule of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// Adam. DeepSpeed's `Adam` decays parameters as AdamW does, unless `adam_w_mode` is false.
    Adam {
        /// Of the moments.
        betas: (f64, f64),
        /// Added to the root of the second moment.
        eps: f64,
        /// Whether parameters decay apart from gradients, as in AdamW.
        decoupled: bool,
    },
    /// Stochastic gradient descent.
    Sgd {
        /// Of the moment; 0 is none.
        momentum: f64,
        /// How much of a gradient does not enter the moment.
        dampening: f64,
        /// Whether it looks ahead.
        nesterov: bool,
    },
    /// Lion.
    Lion {
        /// Of the moment: for the step, and for itself.
        betas: (f64, f64),
    },
    /// Muon for matrices, and Adam for all else.
    Muon {
        /// Of the moment.
        momentum: f64,
        /// Of Adam's moments.
        betas: (f64, f64),
        /// Of Adam.
        eps: f64,
    },
}

/// What is sharded, and where it is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Zero {
    /// 0: nothing; 1: the optimizer's state; 2: gradients, too; 3: parameters, too.
    pub stage: u8,
    /// Elements of a bucket of gradients.
    pub reduce_bucket_size: u64,
    /// Ranks among which parameters are gathered (`zero_hpz_partition_size`, `mics_shard_size`), if not all.
    pub shard_among: Option<u64>,
    /// Where the optimizer's state is.
    pub offload_optimizer: Offload,
    /// Where parameters are.
    pub offload_param: Offload,
}

/// Where something is that a device has no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// On the device.
    None,
    /// In the memory of the host.
    Cpu,
    /// In files of this folder.
    Files(PathBuf),
}
