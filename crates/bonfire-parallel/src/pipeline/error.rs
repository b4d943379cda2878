//! Errors of training over a pipeline.

use std::error::Error;

use bonfire_collective::{CollectiveError, Rank, WorldSize};
use bonfire_plan::pipeline::{Broken, Compute};
use bonfire_train::TrainError;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Training over a pipeline failed.
///
/// The rank at which it happens returns the error itself. The others return
/// [`PeerFailed`](CollectiveError::PeerFailed), which names that rank and has the error's text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// An error of any training: see [`TrainError`].
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The schedule is refused by the verifier.
    #[error(transparent)]
    Schedule(#[from] Broken),
    /// The schedule is for another number of ranks.
    #[error(
        "the schedule is for {schedule} ranks and the pipeline has {world}; make it for as many ranks as \
         the world of the stages has"
    )]
    Ranks {
        /// The number of the schedule's ranks.
        schedule: WorldSize,
        /// The number of the world's ranks.
        world: WorldSize,
    },
    /// Ranks have schedules that are not equal.
    #[error("rank {rank} has another schedule than rank 0; make the same one on every rank")]
    OtherSchedule {
        /// The first rank whose schedule is not that of rank 0.
        rank: Rank,
    },
    /// A setting that a pipeline does not support.
    #[error("a pipeline cannot have {setting}: {advice}")]
    Unsupported {
        /// The name and value of the setting.
        setting: String,
        /// The reason, and what to do.
        advice: &'static str,
    },
    /// More or fewer stages than the schedule has for this rank.
    #[error(
        "this rank was given {found} stages, and the schedule gives it {expected} ({stages:?}); bring those, in \
         that order"
    )]
    Stages {
        /// The number of stages that were passed.
        found: usize,
        /// The number of stages that are needed.
        expected: usize,
        /// The numbers of the needed stages.
        stages: Vec<u32>,
    },
    /// More or fewer micro-batches than the schedule has.
    #[error(
        "the step has {found} micro-batches and the schedule is for {expected}; cut the batch into \
         {expected}, or make a schedule for {found}"
    )]
    MicroBatches {
        /// The number of the step's micro-batches.
        found: usize,
        /// The number of the schedule's micro-batches.
        expected: u32,
    },
    /// The program's own error in a forward pass.
    #[error("the forward pass {pass} failed: {source}")]
    Forward {
        /// The failed pass: stage, F, micro-batch.
        pass: Compute,
        /// The error of the program.
        source: BoxError,
    },
    /// A stage's output differs in type or shape from its earlier ones.
    #[error(
        "stage {stage} hands on {found} for micro-batch {micro_batch}, where it handed on {agreed} before; let \
         all micro-batches have the same size, for instance without the rest of the data"
    )]
    OtherOutput {
        /// The number of the stage.
        stage: u32,
        /// The number of the micro-batch.
        micro_batch: u32,
        /// Types and shapes of the first micro-batch.
        agreed: String,
        /// Types and shapes of this one.
        found: String,
    },
    /// A stage takes an input tensor that does not exist.
    #[error(
        "stage {stage} asks for a tensor of {rank} dimensions as its input {input}, and is given {given}; ask \
         for what the stage in front of it hands on, in that order"
    )]
    OtherInput {
        /// The number of the stage.
        stage: u32,
        /// The index of the input, counted from 0.
        input: usize,
        /// The number of dimensions that it takes.
        rank: usize,
        /// Types and shapes of all its inputs.
        given: String,
    },
    /// A stage takes a tied parameter that it does not have.
    #[error(
        "stage {stage} asks for a tied parameter of {rank} dimensions: only the last stage has one, of as many          dimensions as Pipeline::with_tied was given"
    )]
    NotTied {
        /// The number of the stage.
        stage: u32,
        /// The number of dimensions that it takes.
        rank: usize,
    },
    /// The output of the last stage is not a loss.
    #[error(
        "the last stage returns {found}, which is not a loss: let it return one tensor with one element, the mean \
         over the samples of its micro-batch"
    )]
    NoLoss {
        /// Types and shapes of its output.
        found: String,
    },
}
