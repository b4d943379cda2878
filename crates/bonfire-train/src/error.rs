//! Errors of training on several ranks.

use std::error::Error;
use std::fmt::{self, Debug};

use bonfire_checkpoint::CheckpointError;
use bonfire_checkpoint::record::RecordError;
use bonfire_collective::{CollectiveError, Mismatch, Rank};
use bonfire_plan::{DType, MeshError, Placement};

impl From<RecordError> for TrainError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Collective(error) => error.into(),
            RecordError::Checkpoint(error) => error.into(),
            RecordError::OtherProgram { rank, cause } => Self::OtherProgram { rank, cause },
            error => unreachable!("{error}"),
        }
    }
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Training on several ranks failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The ranks cannot be laid out as a mesh of this shape.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The ranks have different models or configurations. All of them return this error.
    #[error("the ranks do not train the same model: {0}")]
    ModelMismatch(#[from] Difference),
    /// Another rank sends a value that this program cannot read.
    #[error(
        "rank {rank} sent a value that this program cannot read ({cause}); start the same build of the \
         program on every rank"
    )]
    OtherProgram {
        /// The rank that sent the value.
        rank: Rank,
        /// The message of the deserializer on this rank.
        cause: String,
    },
    /// A trainable parameter is stored in a type whose gradients cannot be reduced.
    #[error(
        "parameter {parameter} is of type {dtype}, whose gradients cannot be averaged; train in \
         f32, f64, f16 or bf16, or freeze it"
    )]
    UnsupportedDtype {
        /// The path of the parameter in the model.
        parameter: String,
        /// The type of its elements, or `none that gradients have`.
        dtype: String,
    },
    /// A model holds a trainable parameter in two places. Burn's optimizers would update the first
    /// and leave the second behind.
    #[error(
        "parameter {again} is the same as {parameter}, and an optimizer would update only one of \
         them; hold it once and use it in both places of the forward pass"
    )]
    TiedParameter {
        /// Its path in the model where it comes first.
        parameter: String,
        /// Its path in the second place.
        again: String,
    },
    /// A gradient has another type or size than its parameter.
    #[error(
        "the gradient of parameter {parameter} has {found} elements of type {found_dtype}, but \
         the parameter has {expected} of type {dtype}; do not change parameters while they train"
    )]
    UnexpectedGradient {
        /// The path of the parameter in the model.
        parameter: String,
        /// The number of elements in the gradient.
        found: usize,
        /// The type of the gradient's elements.
        found_dtype: DType,
        /// The number of elements in the parameter.
        expected: usize,
        /// The type of the parameter's elements.
        dtype: DType,
    },
    /// The memory of a pass cannot be measured.
    #[error("what a pass takes of memory cannot be measured here: {source}; say it instead")]
    Unmeasurable {
        /// The error of reading the process's memory use.
        source: std::io::Error,
    },
    /// A tensor cannot be read from its device.
    #[error("cannot read {what} from its device: {cause}")]
    UnreadableTensor {
        /// The tensor in words, such as `the loss`.
        what: String,
        /// The error of the backend, as text.
        cause: String,
    },
    /// The loss, or a parameter, is on a backend that this build does not support.
    #[error(
        "cannot follow the backward pass of {what} on device {device}: build with the feature of \
         its backend (flex, cuda or wgpu), and keep the whole model on one backend"
    )]
    UnsupportedBackend {
        /// The tensor in words, such as `the loss`.
        what: String,
        /// The device of the tensor, as Burn prints it.
        device: String,
    },
    /// The forward pass returned an error. The other ranks get the failure of this rank.
    #[error("the forward pass failed: {0}")]
    Forward(#[source] BoxError),
    /// A forward pass returned a loss that is not one number.
    #[error("the loss has {elements} elements; reduce it to one with mean() or sum()")]
    LossShape {
        /// The number of elements in the loss tensor.
        elements: usize,
    },
    /// A loss depends on trainable tensors that are not parameters of the model: those of another model, or the
    /// model's own, used from outside the closure.
    #[error(
        "{gradients} gradients of this backward pass are not of parameters that the closure was given, \
         and would be lost: hold all models that one loss trains in one Module, use the model that the \
         closure is given, and give no_grad() or detach() to what is not to be trained here"
    )]
    ForeignGradients {
        /// The number of such gradients in this backward pass.
        gradients: usize,
    },
    /// Other parameters are to be trained while some gradients wait for the end of their step.
    #[error(
        "the model cannot get other trainable parameters between no_sync() and backward(): call \
         map_module() between two steps"
    )]
    UnfinishedStep,
    /// A placement is incompatible with another setting.
    #[error("placement {placement} cannot be used: {reason}")]
    UnsupportedPlacement {
        /// The placement that was configured for the model.
        placement: Placement,
        /// The setting that excludes it, and what to change.
        reason: String,
    },
    /// A parameter that belongs into a file has no room there.
    #[error("a parameter in a file: {0}")]
    Offload(#[from] bonfire_optim::FileMemoryError),
    /// A rank used a sharded parameter while another one used a different one, or none.
    #[error(
        "this rank uses parameter {parameter}, and another rank does something else: all ranks must use \
         sharded parameters in the same order, in training and in validation ({mismatch})"
    )]
    DifferentUses {
        /// The path of the parameter that this rank gathers.
        parameter: String,
        /// The operations of two ranks that differ.
        mismatch: Box<Mismatch>,
    },
    /// An optimizer needs complete parameters, and would step rows of them.
    #[error(
        "{what} needs whole parameters, but placement {placement} cuts them into rows; {advice}"
    )]
    RowsDiffer {
        /// The optimizer and its parameter, or its gradient clipping.
        what: String,
        /// The placement that was configured for the model.
        placement: Placement,
        /// The change to the program that avoids it.
        advice: &'static str,
    },
    /// The optimizers of a module do not all multiply gradients whose scale is
    /// [deferred](crate::StepOptions::deferred).
    #[error(
        "the scale of gradients was deferred, but the optimizers multiplied only {taken} of {gradients}, or clip by themselves; \
         give each of them with_deferred_scale(), and none a clipping of its own, or leave out StepOptions::with_deferred_scale"
    )]
    ScaleNotTaken {
        /// The number of gradients that the optimizers multiplied.
        taken: usize,
        /// The number of gradients of the step.
        gradients: usize,
    },
    /// Replicas have diverged. All ranks return this error.
    #[error(
        "rank {rank} has other parameters than rank 0; change them only by Ddp::step(), or in the same \
         way on every rank"
    )]
    ReplicasDiffer {
        /// The first rank whose parameters are not those of rank 0.
        rank: Rank,
    },
    /// Ranks accumulated different numbers of micro-batches.
    #[error(
        "ranks accumulated between {least} and {most} micro-batches for one step; call no_sync() \
         equally often on every rank, or weight the losses with Loss::mean_over"
    )]
    UnequalAccumulation {
        /// The lowest number of micro-batches on any rank.
        least: i64,
        /// The highest number of micro-batches on any rank.
        most: i64,
    },
    /// Some batches of a step were weighted and others were not.
    #[error("either all losses of a step are weighted with Loss::mean_over or none is")]
    MixedWeights,
    /// The loss of some ranks is infinite or NaN. All ranks return this error.
    #[error(
        "the loss of {} is not finite; look at the data of that step, lower the learning rate, or \
         clip the gradients", ranks_and_losses(.losses)
    )]
    NonFiniteLoss {
        /// The ranks with such a loss, ascending, and its value.
        losses: Vec<(Rank, f64)>,
    },
    /// A parameter is infinite or NaN where the training is to be saved. All ranks return this error.
    #[error(
        "parameter {parameter} is not finite on rank {rank}: nothing is saved, and earlier checkpoints stay; resume from \
         them with a lower learning rate, or clip the gradients"
    )]
    NonFiniteParameter {
        /// The first rank that has it.
        rank: Rank,
        /// The first one there, in the order of the model's definition.
        parameter: String,
    },
    /// Gradients are infinite or NaN. All ranks return this error.
    #[error(
        "the gradient of {parameter} and of {others} other parameters is not finite; lower the \
         learning rate, clip the gradients, or scale the loss in 16-bit training"
    )]
    NonFiniteGradient {
        /// The first parameter, in the order of the model's definition.
        parameter: String,
        /// The number of further parameters with such gradients.
        others: usize,
    },
    /// Gradients overflow step after step, so that none is taken.
    #[error(
        "the gradient of {parameter} was infinite or NaN in {steps} steps in a row, in the last at the loss scale \
         {scale}: lower the scale or the learning rate, and compute the loss in 32 bits"
    )]
    AlwaysOverflows {
        /// The first parameter that overflowed in the last step.
        parameter: String,
        /// The number of such steps, each without an update.
        steps: u32,
        /// The factor of the loss in the last step.
        scale: f64,
    },
    /// Gradients overflow although the loss is hardly scaled: the training diverges, the scale is not the cause.
    #[error(
        "the gradient of {parameter} overflows at the smallest loss scale, {scale}: the loss itself is \
         infinite or none, or the learning rate is too high; Precision::Bf16 has the range of f32"
    )]
    LossScaleTooSmall {
        /// The first parameter that overflows.
        parameter: String,
        /// The factor of the loss, the least that is configured.
        scale: f64,
    },
    /// Ranks that normalise their batches together are at different layers.
    #[error(transparent)]
    NormMismatch(#[from] NormMismatch),
    /// A layer cannot normalise the batches of all ranks together.
    #[error(
        "layer {layer:?} is burn::nn::BatchNorm, which normalises the batches of one rank only; use \
         bonfire::nn::BatchNorm in its place, which loads the same records"
    )]
    NotConvertible {
        /// The path of the layer in the model.
        layer: String,
    },
    /// No rank had a sample in this step, so there is no mean.
    #[error("no rank had a sample in this step; give at least one rank a batch")]
    NoSamples,
    /// A device does not support the precision.
    #[error("{device} cannot compute in {precision:?}; choose another DdpConfig::precision")]
    UnsupportedPrecision {
        /// The type of passes that the configuration selects.
        precision: crate::Precision,
        /// The first such device of the model, as Burn prints it.
        device: String,
    },
    /// The compression of the configuration cannot be used.
    #[error(transparent)]
    Compression(#[from] crate::compression::CompressionError),
    /// The configuration selects a route from device to device that is not available. All ranks return this error.
    #[error(
        "gradients cannot be sent from device to device, as GradientRoute::{route:?} asks: {reason}; \
         gradients.route=auto, or GradientRoute::Auto, takes another way then"
    )]
    NoDeviceRoute {
        /// The configured route: `Device` or `Nccl`.
        route: crate::GradientRoute,
        /// The obstacle, on this or another rank.
        reason: String,
    },
    /// A device failed in an operation between ranks. The group has ended.
    #[error("values did not get from device to device: {0}")]
    DeviceRoute(#[source] BoxError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device kind is not part of this build.
    #[error(
        "this program was built without the {kind} back end; rebuild it with the feature `{}` of the crate bonfire",
        kind.feature()
    )]
    DeviceNotCompiled {
        /// The device kind that was asked for.
        kind: crate::DeviceKind,
    },
    /// The selected device does not exist.
    #[error(
        "rank {local_rank} of this host needs {kind} device {local_rank}, but {available} of that \
         kind answered; start at most one rank per device, let ranks share them (`--oversubscribe`), or \
         choose another `--device`"
    )]
    NoSuchDevice {
        /// The device kind that was asked for.
        kind: crate::DeviceKind,
        /// The rank's index on its host.
        local_rank: u32,
        /// The number of devices of that kind that this process sees.
        available: usize,
    },
    /// There is no CUDA device, or Burn's kernels for it cannot be compiled.
    #[error("cannot train on cuda: {reason}")]
    NoCuda {
        /// The missing driver, device or toolkit, as a sentence.
        reason: String,
    },
    /// There are fewer CUDA devices than ranks.
    #[error(
        "{ranks} ranks on this host, but {available} CUDA devices: start at most one rank per device, or give \
         --oversubscribe to let ranks share them"
    )]
    TooManyRanks {
        /// The number of ranks on this host.
        ranks: u32,
        /// The number of CUDA devices that this process sees.
        available: usize,
    },
    /// The device is listed but does not work.
    #[error("{device} does not work: {cause}")]
    BrokenDevice {
        /// The kind and index of the device, such as `cuda:0`.
        device: String,
        /// The error or panic of a first sum on it.
        cause: String,
    },
}

impl TrainError {
    /// Converts the error of a backend that cannot read a tensor.
    #[doc(hidden)]
    pub fn unreadable<E: Debug>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |cause| Self::UnreadableTensor { what: what.into(), cause: format!("{cause:?}") }
    }

    pub(crate) fn unsupported(placement: Placement, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::UnsupportedPlacement { placement, reason }
    }
}

/// For conversions that cannot fail, as that of a shape to itself in [`World::mesh`](crate::World::mesh).
impl From<std::convert::Infallible> for TrainError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

fn ranks_and_losses(losses: &[(Rank, f64)]) -> String {
    let one = |(rank, loss): &(Rank, f64)| format!("rank {rank} ({loss})");
    losses.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The first difference between the models of two ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{subject} is {} on rank {rank} but {} on rank {other_rank}; build the same model with the \
     same configuration on every rank",
    .found.as_deref().unwrap_or("missing"), .other_found.as_deref().unwrap_or("missing")
)]
pub struct Difference {
    /// The subject: `parameter` and its path, or a part of the configuration.
    pub subject: String,
    /// The rank that has this value.
    pub rank: Rank,
    /// The value of that rank; `None` if it is missing there.
    pub found: Option<String>,
    /// The rank that has the other value.
    pub other_rank: Rank,
    /// The value of the other rank; `None` if it is missing there.
    pub other_found: Option<String>,
}

/// Ranks that normalise together are at different layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} is in the {pass}, but rank {other_rank} in the {other_pass}; run the same batch \
     norm layers in the same order on every rank"
)]
pub struct NormMismatch {
    pub(crate) rank: Rank,
    pub(crate) pass: Pass,
    pub(crate) other_rank: Rank,
    pub(crate) other_pass: Pass,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) name: &'static str,
    pub(crate) features: usize,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of a layer of {} features", self.name, self.features)
    }
}
