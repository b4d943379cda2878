//! The sections of a configuration.

use std::path::PathBuf;

use bonfire_plan::pipeline::Kind;
use bonfire_plan::rate::{Decay, Schedule};
use serde::{Deserialize, Serialize};

use crate::settings::{OffloadTo, OuterGradients, Precision, Route, Wire};

/// Writes a section: its fields with their defaults.
macro_rules! section {
    ($(#[$doc:meta])+ $Section:ident {$(
        $(#[$field_doc:meta])+
        $field:ident: $type:ty = $default:expr,
    )+}) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct $Section {$(
            $(#[$field_doc])+
            pub $field: $type,
        )+}

        impl Default for $Section {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}

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

section! {
    /// The distribution of samples to the ranks.
    DataSection {
        /// Gives each epoch its own order, by the seed.
        shuffle: bool = true,
        /// Leaves out samples that do not fill a batch on every rank. Otherwise some come twice.
        drop_last: bool = false,
        /// Threads of a rank that make batches ahead.
        workers: usize = 2,
    }
}

/// The update rule of the optimizer, and what others have to know of it.
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

bonfire_plan::named!(OptimizerKind as "optimizer" {
    AdamW = "adamw", Adam = "adam", Sgd = "sgd", Lion = "lion", Lamb = "lamb", Muon = "muon"
});

impl OptimizerKind {
    /// Returns the number of moments that it keeps for each element, if it has this momentum.
    pub fn moments(self, momentum: Option<f64>) -> u32 {
        match self {
            Self::AdamW | Self::Adam | Self::Lamb | Self::Muon => 2,
            Self::Lion => 1,
            Self::Sgd => u32::from(momentum.is_some_and(|momentum| momentum > 0.0)),
        }
    }

    /// Returns the number of moments for each element of a matrix, unless it is an embedding table, if that differs.
    pub fn matrix_moments(self) -> Option<u32> {
        (self == Self::Muon).then_some(1)
    }

    /// Returns true if it is fused: its state can be offloaded, it takes the factors of gradients, and it steps rows and
    /// other parts of a parameter like the complete parameter.
    pub fn is_fused(self) -> bool {
        !matches!(self, Self::Lamb | Self::Muon)
    }
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

section! {
    /// An optimizer. A value that its rule does not have is left alone.
    OptimizerSection {
        /// The update rule, which decides the other values that apply.
        kind: OptimizerKind = OptimizerKind::default(),
        /// The learning rate; the highest, where a schedule changes it.
        lr: f64 = 1e-3,
        /// Weight decay, as the rule applies it. The default is 0, and not the 0.01 of `bonfire::optim::AdamWConfig`,
        /// which is PyTorch's, nor the 1e-4 of Burn's AdamW.
        weight_decay: f64 = 0.0,
        /// Leaves parameters without weight decay whose path has one of these texts in it, such as `["bias", "gamma"]`.
        no_decay: Vec<String> = Vec::new(),
        /// Decay rates of the moments; by default 0.9 and 0.999, for Lion 0.9 and 0.99.
        betas: Option<(f64, f64)> = None,
        /// Added to the root of the second moment.
        eps: f64 = 1e-8,
        /// Momentum of SGD and Muon; by default 0 and 0.95.
        momentum: Option<f64> = None,
        /// The fraction of a gradient that does not enter the moment of SGD.
        dampening: f64 = 0.0,
        /// Enables Nesterov momentum for the SGD rule.
        nesterov: bool = false,
        /// The scale of Muon's steps.
        muon_scale: MuonScale = MuonScale::default(),
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

section! {
    /// The type of numbers, and the scale of the loss under f16.
    PrecisionSection {
        /// The data type of forward and backward passes.
        compute: Precision = Precision::default(),
        /// A scale that stays. Without it the scale adapts itself, by the four values below.
        loss_scale: Option<f64> = None,
        /// The scale of the first step.
        initial_scale: f64 = 65536.0,
        /// Steps without an overflow until it doubles.
        scale_window: u32 = 1000,
        /// Number of overflows until the scale halves.
        hysteresis: u32 = 2,
        /// Counts only overflows in a row.
        consecutive_hysteresis: bool = false,
        /// The lower bound of the loss scale.
        min_scale: f64 = 1.0,
        /// Makes all ranks skip a step whose gradients are infinite or NaN. Under f16 they always do.
        skip_overflow: bool = false,
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

section! {
    /// The schedule of a pipeline, where `mesh` has `pp`. The micro-batches of a step are its `batch.accumulation`
    /// forward passes.
    PipelineSection {
        /// The order of the passes: `gpipe`, `1f1b`, `interleaved`, `zb_h1` or `zbv`.
        schedule: Kind = Kind::OneForwardOneBackward,
        /// The number of stages on each rank; by default 2 for `interleaved` and `zbv`, else 1.
        stages_per_rank: Option<u32> = None,
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

section! {
    /// Training over slow links by DiLoCo: each worker takes steps alone between two exchanges of parameters. The
    /// workers are the ranks along `dp_replicate` of the mesh.
    DilocoSection {
        /// Steps that a worker takes alone between two exchanges. Without it gradients are averaged in every step.
        local_steps: Option<u64> = None,
        /// Parts of the parameters, which are exchanged one after the other.
        fragments: usize = 1,
        /// The data type in which parameters are exchanged.
        outer_gradients: OuterGradients = OuterGradients::default(),
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

section! {
    /// When and where checkpoints are written.
    CheckpointSection {
        /// The folder of checkpoints; none are written without it.
        folder: Option<PathBuf> = None,
        /// Steps between two. Without it there is one when the training ends or is asked to stop.
        every: Option<u64> = None,
        /// The number of newest checkpoints that are kept.
        keep: usize = 2,
        /// The order of the metric that the program saves with; the best checkpoint is kept besides.
        best: Option<Best> = None,
        /// Lets the training continue while they are written.
        background: bool = false,
        /// Continues from the newest checkpoint. If false, existing checkpoints are set aside.
        resume: bool = true,
        /// Restores the optimizer's state. If false, the optimizer starts without, and may be of another kind.
        resume_optimizer: bool = true,
    }
}

section! {
    /// The title, the folder and the frequency of reports.
    ReportSection {
        /// The headline of the report page.
        title: String = "training".to_owned(),
        /// The folder of curves and the page; none are written without it.
        folder: Option<PathBuf> = None,
        /// Gives each run a new folder in `folder`, named by the time in UTC and this name.
        run_name: Option<String> = None,
        /// Steps between two lines of figures.
        every: u64 = 10,
        /// FLOP/s that the device of each rank can do, for model FLOPs utilisation.
        peak_flops: Option<f64> = None,
    }
}
