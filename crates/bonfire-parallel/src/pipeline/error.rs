//! What can go wrong in a pipeline.

use std::error::Error;

use bonfire_collective::{CollectiveError, Rank, WorldSize};
use bonfire_plan::pipeline::{Broken, Compute};
use bonfire_train::TrainError;

/// An error of a program, of any type.
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
    /// What every training may meet: see [`TrainError`].
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The schedule must not run.
    #[error(transparent)]
    Schedule(#[from] Broken),
    /// A schedule for another number of ranks.
    #[error(
        "the schedule is for {schedule} ranks and the pipeline has {world}; make it for as many ranks as \
         the world of the stages has"
    )]
    Ranks {
        /// Those of the schedule.
        schedule: WorldSize,
        /// Those of the world.
        world: WorldSize,
    },
    /// Ranks with different schedules.
    #[error("rank {rank} has another schedule than rank 0; make the same one on every rank")]
    OtherSchedule {
        /// The first rank whose schedule is not that of rank 0.
        rank: Rank,
    },
    /// A setting that a pipeline cannot have.
    #[error("a pipeline cannot have {setting}: {advice}")]
    Unsupported {
        /// Which one.
        setting: String,
        /// Why, and what to do.
        advice: &'static str,
    },
    /// More or fewer stages than the schedule gives this rank.
    #[error(
        "this rank was given {found} stages, and the schedule gives it {expected} ({stages:?}); bring those, in \
         that order"
    )]
    Stages {
        /// Those that it was given.
        found: usize,
        /// How many it must have.
        expected: usize,
        /// Which ones.
        stages: Vec<u32>,
    },
    /// More or fewer micro-batches than the schedule is for.
    #[error(
        "the step has {found} micro-batches and the schedule is for {expected}; cut the batch into \
         {expected}, or make a schedule for {found}"
    )]
    MicroBatches {
        /// Those of the step.
        found: usize,
        /// Those of the schedule.
        expected: u32,
    },
    /// The program's own error in a forward pass.
    #[error("the forward pass {pass} failed: {source}")]
    Forward {
        /// Which pass: stage, F, micro-batch.
        pass: Compute,
        /// The program's error.
        source: BoxError,
    },
    /// A stage hands on something else than before.
    #[error(
        "stage {stage} hands on {found} for micro-batch {micro_batch}, where it handed on {agreed} before; let \
         all micro-batches have the same size, for instance without the rest of the data"
    )]
    OtherOutput {
        /// The stage.
        stage: u32,
        /// The micro-batch.
        micro_batch: u32,
        /// Types and shapes of the first micro-batch.
        agreed: String,
        /// Types and shapes of this one.
        found: String,
    },
    /// A stage asks for a tensor that it was not given.
    #[error(
        "stage {stage} asks for a tensor of {rank} dimensions as its input {input}, and is given {given}; ask \
         for what the stage in front of it hands on, in that order"
    )]
    OtherInput {
        /// The stage.
        stage: u32,
        /// Which input, counted from 0.
        input: usize,
        /// The dimensions that it asks for.
        rank: usize,
        /// Types and shapes of all its inputs.
        given: String,
    },
    /// A stage asks for a tied parameter that it does not have.
    #[error(
        "stage {stage} asks for a tied parameter of {rank} dimensions: only the last stage has one, of as many          dimensions as Pipeline::with_tied was given"
    )]
    NotTied {
        /// The stage.
        stage: u32,
        /// The dimensions that it asks for.
        rank: usize,
    },
    /// The last stage returns something else than a loss.
    #[error(
        "the last stage returns {found}, which is no loss: let it return one tensor with one element, the mean \
         over the samples of its micro-batch"
    )]
    NoLoss {
        /// Types and shapes of what it returns.
        found: String,
    },
}
