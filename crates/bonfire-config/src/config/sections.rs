//! The sections of a configuration.

use std::path::PathBuf;

use bonfire_plan::pipeline::Kind;
use bonfire_plan::rate::{Decay, Schedule};
use serde::{Deserialize, Serialize};

use crate::settings::{OffloadTo, OuterGradients, Precision, Route, Wire};

/// The samples of a step: `total = micro * accumulation * ranks`. A missing size follows from the rest.
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

/// The distribution of samples to the ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DataSection {
    /// Gives each epoch its own order, by the seed.
    pub shuffle: bool,
    /// Leaves out samples that do not fill a batch on every rank. Otherwise some come twice.
    pub drop_last: bool,
    /// Threads of a rank that make batches ahead.
    pub workers: usize,
}

impl Default for DataSection {
    fn default() -> Self {
        Self { shuffle: true, drop_last: false, workers: 2 }
    }
}

/// The update rule of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW, in one pass over memory.
    #[default]
    AdamW,
    /// Adam, whose weight decay is part of the gradient.
    Adam,
    /// Stochastic gradient descent, with optional momentum.
    Sgd,
    /// The Lion rule: sign updates from one moment.
    Lion,
    /// LAMB: Adam with a trust ratio per layer.
    Lamb,
    /// Muon for matrices, AdamW for all else.
    Muon,
}

/// The scale of Muon's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MuonScale {
    /// Scaled like AdamW's, so that one rate serves all parameters.
    #[default]
    AdamW,
    /// Scaled as by Muon's authors and DeepSpeed: longer only where a layer has more outputs than inputs.
    Original,
}

/// An optimizer. A value that its rule does not have is left alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OptimizerSection {
    /// The update rule, which decides the other values that apply.
    pub kind: OptimizerKind,
    /// The learning rate; the highest, where a schedule changes it.
    pub lr: f64,
    /// Weight decay, as the rule applies it. The default is 0, and not the 0.01 of `bonfire::optim::AdamWConfig`,
    /// which is PyTorch's, nor the 1e-4 of Burn's AdamW.
    pub weight_decay: f64,
    /// Leaves parameters without weight decay whose path has one of these texts in it, such as `["bias", "gamma"]`.
    pub no_decay: Vec<String>,
    /// Decay rates of the moments; by default 0.9 and 0.999, for Lion 0.9 and 0.99.
    pub betas: Option<(f64, f64)>,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Momentum of SGD and Muon; by default 0 and 0.95.
    pub momentum: Option<f64>,
    /// The fraction of a gradient that does not enter the moment of SGD.
    pub dampening: f64,
    /// Enables Nesterov momentum for the SGD rule.
    pub nesterov: bool,
    /// The scale of Muon's steps.
    pub muon_scale: MuonScale,
}

impl Default for OptimizerSection {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            lr: 1e-3,
            weight_decay: 0.0,
            no_decay: Vec::new(),
            betas: None,
            eps: 1e-8,
            momentum: None,
            dampening: 0.0,
            nesterov: false,
            muon_scale: MuonScale::default(),
        }
    }
}

/// The decay of a learning rate after its warm-up, until the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecayKind {
    /// Keeps the rate at its highest value.
    #[default]
    Constant,
    /// Decays in a straight line.
    Linear,
    /// Decays along half a cosine.
    Cosine,
}

/// The learning rate, as a function of the steps of the optimizer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleSection {
    /// Steps in which the rate rises to `optimizer.lr`.
    pub warmup_steps: u64,
    /// The curve of the rate after the warm-up.
    pub decay: DecayKind,
    /// The last rate, as a fraction of `optimizer.lr`.
    pub final_factor: f64,
}

impl ScheduleSection {
    /// Returns the schedule to the highest rate `peak`, which ends with step `steps`.
    pub(super) fn to(&self, peak: f64, steps: u64) -> Schedule {
        let (steps, final_factor) = (steps.saturating_sub(self.warmup_steps), self.final_factor);
        let decay = match self.decay {
            DecayKind::Constant => Decay::Constant,
            DecayKind::Linear => Decay::Linear { steps, final_factor },
            DecayKind::Cosine => Decay::Cosine { steps, final_factor },
        };
        Schedule::constant(peak).with_warmup(self.warmup_steps).with_decay(decay)
    }
}

/// The type of numbers, and the scale of the loss under f16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PrecisionSection {
    /// The data type of forward and backward passes.
    pub compute: Precision,
    /// A scale that stays. Without it the scale adapts itself, by the four values below.
    pub loss_scale: Option<f64>,
    /// The scale of the first step.
    pub initial_scale: f64,
    /// Steps without an overflow until it doubles.
    pub scale_window: u32,
    /// Number of overflows until the scale halves.
    pub hysteresis: u32,
    /// Counts only overflows in a row.
    pub consecutive_hysteresis: bool,
    /// The lower bound of the loss scale.
    pub min_scale: f64,
    /// Makes all ranks skip a step whose gradients are infinite or NaN. Under f16 they always do.
    pub skip_overflow: bool,
}

impl Default for PrecisionSection {
    fn default() -> Self {
        Self {
            compute: Precision::default(),
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

/// Limits the size of gradients by norm or by value, not both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClipSection {
    /// The largest global norm of the gradients.
    pub norm: Option<f64>,
    /// The largest absolute value of a gradient element.
    pub value: Option<f64>,
}

/// The schedule of a pipeline, where `mesh` has `pp`. The micro-batches of a step are its `batch.accumulation` forward
/// passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PipelineSection {
    /// The order of the passes: `gpipe`, `1f1b`, `interleaved`, `zb_h1` or `zbv`.
    pub schedule: Kind,
    /// The number of stages on each rank; by default 2 for `interleaved` and `zbv`, else 1.
    pub stages_per_rank: Option<u32>,
}

impl Default for PipelineSection {
    fn default() -> Self {
        Self { schedule: Kind::OneForwardOneBackward, stages_per_rank: None }
    }
}

/// The route, the data type and the buckets in which gradients are communicated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GradientSection {
    /// The route of gradients between the ranks.
    pub route: Route,
    /// The data type in which gradients are communicated.
    pub wire: Wire,
    /// Bytes of a bucket, if not the default of `DdpConfig`.
    pub bucket_bytes: Option<usize>,
}

/// Training over slow links by DiLoCo: each worker takes steps alone between two exchanges of parameters. The workers
/// are the ranks along `dp_replicate` of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DilocoSection {
    /// Steps that a worker takes alone between two exchanges. Without it gradients are averaged in every step.
    pub local_steps: Option<u64>,
    /// Parts of the parameters, which are exchanged one after the other.
    pub fragments: usize,
    /// The data type in which parameters are exchanged.
    pub outer_gradients: OuterGradients,
}

impl Default for DilocoSection {
    fn default() -> Self {
        Self { local_steps: None, fragments: 1, outer_gradients: OuterGradients::default() }
    }
}

/// The place of values that may wait in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeptIn {
    /// Kept in the memory of the device.
    #[default]
    None,
    /// Kept in the memory of the host.
    Memory,
}

/// State kept outside of device memory: `none`, `memory`, or a folder for files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OffloadSection {
    /// The place of the optimizer's state.
    pub optimizer: OffloadTo,
    /// The place of parameters; in files, the optimizer's state is with them.
    pub parameters: OffloadTo,
    /// The place of inputs of blocks that are computed again in the backward pass: `none` or `memory`. It applies to
    /// blocks that the model runs by `bonfire::trainer::recompute`.
    pub activations: KeptIn,
}

/// When a training is evaluated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvaluationSection {
    /// Steps between two evaluations. Without it there is one at the end of each epoch.
    pub every: Option<u64>,
}

/// The order that makes a metric the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Best {
    /// Lowest value, as for a loss.
    Lowest,
    /// Highest value, as for an accuracy.
    Highest,
}

/// When and where checkpoints are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointSection {
    /// The folder of checkpoints; none are written without it.
    pub folder: Option<PathBuf>,
    /// Steps between two. Without it there is one when the training ends or is asked to stop.
    pub every: Option<u64>,
    /// The number of newest checkpoints that are kept.
    pub keep: usize,
    /// The order of the metric that the program saves with; the best checkpoint is kept besides.
    pub best: Option<Best>,
    /// Lets the training continue while they are written.
    pub background: bool,
    /// Continues from the newest checkpoint. If false, existing checkpoints are set aside.
    pub resume: bool,
    /// Restores the optimizer's state, too. If false, the optimizer starts without one.
    pub resume_optimizer: bool,
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
            resume_optimizer: true,
        }
    }
}

/// The title, the folder and the frequency of reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportSection {
    /// The headline of the report page.
    pub title: String,
    /// The folder of curves and the page; none are written without it.
    pub folder: Option<PathBuf>,
    /// Gives each run a new folder in `folder`, named by the time in UTC and this name.
    pub run_name: Option<String>,
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
            run_name: None,
            every: 10,
            peak_flops: None,
        }
    }
}
