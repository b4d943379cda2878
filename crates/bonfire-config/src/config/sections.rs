//! The sections of a configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How many samples a step has: `total = micro * accumulation * ranks`. What is missing follows from the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchSection {
    /// Samples of a step, on all ranks.
    pub total: Option<u64>,
    /// Samples of a forward pass, on one rank.
    pub micro: Option<u64>,
    /// Forward passes of a step, on one rank.
    pub accumulation: Option<u64>,
}

/// How data is dealt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DataSection {
    /// Whether each epoch has an order of its own, by the seed.
    pub shuffle: bool,
    /// Whether samples that do not fill a batch on every rank are left out. Else some come twice.
    pub drop_last: bool,
    /// Threads of a rank that make batches ahead.
    pub workers: usize,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            shuffle: true,
            drop_last: false,
            workers: 2,
        }
    }
}

/// The rule of an optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW, in one pass over memory.
    #[default]
    AdamW,
    /// Adam, whose weight decay is part of the gradient.
    Adam,
    /// Stochastic gradient descent.
    Sgd,
    /// Lion.
    Lion,
    /// LAMB.
    Lamb,
    /// Muon for matrices, AdamW for all else.
    Muon,
}

/// How long the steps of Muon are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MuonScale {
    /// As those of AdamW, so that one rate serves all parameters.
    #[default]
    AdamW,
    /// As Muon's authors and DeepSpeed have it: longer only where a layer has more outputs than inputs.
    Original,
}

/// An optimizer. A value that its rule does not have is left alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OptimizerSection {
    /// Its rule.
    pub kind: OptimizerKind,
    /// The learning rate; the highest, where a schedule changes it.
    pub lr: f64,
    /// How much of a parameter is taken away in a step, in the way of the rule. With nothing said it is 0, and not the 0.01
    /// of `bonfire::optim::AdamWConfig`, which is PyTorch's, nor the 1e-4 of Burn's AdamW.
    pub weight_decay: f64,
    /// Of the moments: 0.9 and 0.999, Lion's 0.9 and 0.99, if nothing is said.
    pub betas: Option<(f64, f64)>,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Of the moment of SGD and Muon: 0 and 0.95, if nothing is said.
    pub momentum: Option<f64>,
    /// How much of a gradient does not enter the moment of SGD.
    pub dampening: f64,
    /// Whether SGD looks ahead.
    pub nesterov: bool,
    /// How long the steps of Muon are.
    pub muon_scale: MuonScale,
}

impl Default for OptimizerSection {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            lr: 1e-3,
            weight_decay: 0.0,
            betas: None,
            eps: 1e-8,
            momentum: None,
            dampening: 0.0,
            nesterov: false,
            muon_scale: MuonScale::default(),
        }
    }
}

/// How a learning rate falls after its warm-up, until the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// In a straight line.
    Linear,
    /// Down half a cosine.
    Cosine,
}

/// The learning rate, as a function of the steps of the optimizer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleSection {
    /// Steps in which the rate rises to `optimizer.lr`.
    pub warmup_steps: u64,
    /// How it falls afterwards.
    pub decay: Decay,
    /// The last rate, as a fraction of `optimizer.lr`.
    pub final_factor: f64,
}

/// What passes compute in. Parameters and moments keep 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// 32 bits.
    #[default]
    F32,
    /// bf16.
    Bf16,
    /// IEEE's 16 bits, with a scaled loss.
    F16,
}

/// The type of numbers, and the scale of the loss under f16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PrecisionSection {
    /// What passes compute in.
    pub compute: Compute,
    /// A scale that stays. Without it the scale adapts itself, by the four values below.
    pub loss_scale: Option<f64>,
    /// The first scale.
    pub initial_scale: f64,
    /// Steps without an overflow until it doubles.
    pub scale_window: u32,
    /// At which overflow it halves.
    pub hysteresis: u32,
    /// Whether only overflows in a row count.
    pub consecutive_hysteresis: bool,
    /// It never falls below this.
    pub min_scale: f64,
    /// Whether all ranks skip a step whose gradients are infinite or NaN. Under f16 they always do.
    pub skip_overflow: bool,
}

impl Default for PrecisionSection {
    fn default() -> Self {
        Self {
            compute: Compute::default(),
            loss_scale: None,
            initial_scale: 65536.0,
            scale_window: 1000,
            hysteresis: 2,
            consecutive_hysteresis: false,
            min_scale: 1.0,
            skip_overflow: false,
        }
    }
}

/// How gradients are kept from being too large. Only one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClipSection {
    /// The largest norm of all gradients together.
    pub norm: Option<f64>,
    /// The largest magnitude of any number.
    pub value: Option<f64>,
}

/// What gradients travel in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Their own type.
    #[default]
    Own,
    /// bf16.
    Bf16,
    /// IEEE's 16 bits.
    F16,
}

/// How gradients travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GradientSection {
    /// What they travel in.
    pub wire: Wire,
    /// Bytes of a bucket, if not the default of `DdpConfig`.
    pub bucket_bytes: Option<usize>,
}

/// Where something is that a device has no room for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum OffloadTo {
    /// On the device.
    #[default]
    None,
    /// In the memory of the host.
    Memory,
    /// In files of this folder.
    Files(PathBuf),
}

impl From<String> for OffloadTo {
    fn from(text: String) -> Self {
        match text.as_str() {
            "none" => Self::None,
            "memory" => Self::Memory,
            _ => Self::Files(text.into()),
        }
    }
}

impl From<OffloadTo> for String {
    fn from(to: OffloadTo) -> Self {
        match to {
            OffloadTo::None => "none".to_owned(),
            OffloadTo::Memory => "memory".to_owned(),
            OffloadTo::Files(folder) => folder.display().to_string(),
        }
    }
}

/// Where something waits that may be in the memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeptIn {
    /// On the device.
    #[default]
    None,
    /// In the memory of the host.
    Memory,
}

/// What lies elsewhere than on the device: `none`, `memory`, or a folder for files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OffloadSection {
    /// The optimizer's state.
    pub optimizer: OffloadTo,
    /// Parameters; in files the optimizer's state with them.
    pub parameters: OffloadTo,
    /// What blocks begin with that are computed again in the backward pass: `none` or `memory`. For the blocks that the
    /// model runs by `bonfire::trainer::recompute`.
    pub activations: KeptIn,
}

/// Which metric is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Best {
    /// Such as a loss.
    Lowest,
    /// Such as an accuracy.
    Highest,
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointSection {
    /// Where they are; none are written without it.
    pub folder: Option<PathBuf>,
    /// Steps between two. Without it there is one when the training ends or is asked to stop.
    pub every: Option<u64>,
    /// How many of the newest are kept.
    pub keep: usize,
    /// What makes the best, which is kept besides: of the metrics that the program saves with.
    pub best: Option<Best>,
    /// Whether the training goes on while they are written.
    pub background: bool,
    /// Whether a training goes on from the newest that is there. If not, those that are there are set aside.
    pub resume: bool,
}

impl Default for CheckpointSection {
    fn default() -> Self {
        Self {
            folder: None,
            every: None,
            keep: 2,
            best: None,
            background: false,
            resume: true,
        }
    }
}

/// What is told of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportSection {
    /// The headline.
    pub title: String,
    /// Where curves and the page are written; nowhere without it.
    pub folder: Option<PathBuf>,
    /// Steps between two lines of figures.
    pub every: u64,
    /// FLOP/s that the device of each rank can do, for model FLOPs utilisation.
    pub peak_flops: Option<f64>,
}

impl Default for ReportSection {
    fn default() -> Self {
        Self {
            title: "training".to_owned(),
            folder: None,
            every: 10,
            peak_flops: None,
        }
    }
}
