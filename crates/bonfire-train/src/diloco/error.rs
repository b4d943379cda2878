//! What can go wrong between workers.

use crate::TrainError;
use bonfire_collective::{CollectiveError, Rank};

/// A training with DiLoCo failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DilocoError {
    /// An option has no meaning.
    #[error("{what}")]
    Config {
        /// Which one, and what it may be.
        what: String,
    },
    /// The workers were given different options. All of them return this error.
    #[error(
        "worker {rank} has other options than worker 0: {theirs} rather than {ours}; give all workers the same"
    )]
    ConfigMismatch {
        /// The worker that differs.
        rank: Rank,
        /// Its options.
        theirs: String,
        /// Those of worker 0.
        ours: String,
    },
    /// Worker 0 is new, and others are not. All of them return this error.
    #[error(
        "worker 0 begins, and worker {rank} goes on from step {step}; workers that join must come after one that was \
         there before"
    )]
    NewcomerFirst {
        /// The first that is not new.
        rank: Rank,
        /// Where it was.
        step: u64,
    },
    /// The ranks of one worker were given different states. All ranks return this error.
    #[error(
        "the ranks of worker {rank} do not go on from the same step; give all of them the same state, or none of them one"
    )]
    StateMismatch {
        /// The worker.
        rank: Rank,
    },
    /// There is nothing to train.
    #[error(
        "the model has no trainable parameters; put it on a device with autodiff, as in `device.autodiff()`"
    )]
    NoParameters,
    /// A state is of another model.
    #[error(
        "the state is of {found} trainable elements, and the model has {expected}; resume the model that it was saved with"
    )]
    OtherModel {
        /// How many the state has.
        found: usize,
        /// How many the model has.
        expected: usize,
    },
    /// Parameters of workers differ from those of the last exchange by infinity or NaN. All workers return this error.
    #[error(
        "the parameters of a worker are not finite after {step} steps; lower the learning rate of the inner optimizer, \
         or clip its gradients"
    )]
    NonFinite {
        /// How many steps each worker has taken.
        step: u64,
    },
    /// Some parameters are on their way, or were changed since they were.
    #[error("the workers are between two exchanges; call `finish` before `state`")]
    UnfinishedRound,
    /// A parameter cannot be read from its device.
    #[error("cannot read parameter {parameter} from its device: {cause}")]
    Unreadable {
        /// Its path in the model.
        parameter: String,
        /// The backend's words.
        cause: String,
    },
    /// The model or its ranks; the message names the rank at fault.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<CollectiveError> for DilocoError {
    fn from(error: CollectiveError) -> Self {
        Self::Train(error.into())
    }
}
