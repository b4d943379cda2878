//! Errors of a training with Burn's learner.

use std::sync::Arc;

use bonfire_collective::{CollectiveError, Rank};
use burn::data::dataset::DatasetError;
use burn_train::train::WorkerFailure;
use burn_train::{Interrupter, TrainingError};

use bonfire_train::{CheckpointError, TrainError};

/// A training with Burn's learner failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnerError {
    /// Averaging failed, or another rank did; the message names it.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// This rank's data could not be read.
    #[error("the data of this rank failed: {0}")]
    Dataset(#[source] DatasetError),
    /// Burn's learner stopped itself on this rank: a metric or a checkpoint failed.
    #[error("the learner of this rank failed: {0}")]
    Learner(#[source] Arc<TrainingError>),
    /// A loader returned another number of items than requested. Ranks would train on the same data.
    #[error(
        "the slice {start}..{end} of a data loader has {found} items, so its data cannot be divided \
         among the ranks; implement DataLoader::slice, or use bonfire::data::DatasetLoader"
    )]
    NotSliced {
        /// The first item that was requested.
        start: usize,
        /// One past the last item that was requested.
        end: usize,
        /// The number of items that the slice has.
        found: usize,
    },
    /// A loader returned a batch without its number of samples.
    #[error(
        "a data loader gave a batch without counting its samples; its iterator's progress() must \
         count every item, or the mean over the ranks would be wrong"
    )]
    Uncounted,
    /// The model, or a part of it, was made without autodiff and would not train.
    #[error(
        "the model, or a part of it, has no gradients; make all of it on a device with autodiff, or \
         all of it without and put it in training mode with Module::train"
    )]
    NotTraining,
    /// The configuration selects passes in f16, whose losses must be scaled.
    #[error(
        "the learner cannot scale losses, because its steps run their backward passes themselves, and in \
         Precision::F16 small gradients would vanish; use Precision::Bf16, or a loop with Ddp and LossScaler"
    )]
    NotScaled,
    /// The learner's checkpointing strategy is not the one that decides when compression is saved.
    #[error(
        "the learner saves checkpoints, but no strategy decides when to keep the state of compression: give the \
         training .with_checkpointing_strategy(kept.follow(...))"
    )]
    NotFollowing,
    /// The output of a step cannot be sent to rank 0.
    #[error("the output of a step cannot be sent to rank 0: {0}")]
    Output(String),
    /// The state of the training cannot be sent from rank 0.
    #[error("the {what} of rank 0 cannot be passed on: {cause}")]
    Record {
        /// The part: model, optimizer or learning-rate scheduler.
        what: &'static str,
        /// The message of the serializer, or that nothing came in time.
        cause: String,
    },
}

impl From<CollectiveError> for LearnerError {
    fn from(error: CollectiveError) -> Self {
        Self::Train(error.into())
    }
}

impl From<CheckpointError> for LearnerError {
    fn from(error: CheckpointError) -> Self {
        Self::Train(error.into())
    }
}

impl LearnerError {
    pub(crate) fn stop(self, interrupter: &Interrupter, rank: Rank) {
        match self {
            // Known to the learner already.
            Self::Learner(_) => {}
            Self::Dataset(error) => interrupter.fail(error),
            other => {
                let culprit = match &other {
                    Self::Train(TrainError::Collective(
                        CollectiveError::PeerFailed { rank, .. }
                        | CollectiveError::FailedElsewhere { rank: Some(rank), .. },
                    )) => *rank,
                    _ => rank,
                };
                // Burn has no error of another kind for what a strategy meets.
                interrupter.fail(TrainingError::Workers(vec![WorkerFailure {
                    device_id: culprit.index(),
                    message: other.to_string(),
                }]));
            }
        }
    }
}
