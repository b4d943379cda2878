//! Errors of training with DiLoCo.

use crate::TrainError;
use bonfire_collective::{CollectiveError, Rank};

/// A training with DiLoCo failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DilocoError {
    /// An option is out of its range.
    #[error("{what}")]
    Config {
        /// The option, its value and its range, as a sentence.
        what: String,
    },
    /// The workers have different options. All of them return this error.
    #[error(
        "worker {rank} has other options than worker 0: {theirs} rather than {ours}; give all workers the same"
    )]
    ConfigMismatch {
        /// The first worker whose options differ.
        rank: Rank,
        /// The options of that worker, as text.
        theirs: String,
        /// The options of worker 0, as text.
        ours: String,
    },
    /// Worker 0 is new, and others are not. All of them return this error.
    #[error(
        "worker 0 begins, and worker {rank} continues from step {step}; workers that join must come after one that was \
         there before"
    )]
    NewcomerFirst {
        /// The first worker that is not new.
        rank: Rank,
        /// The number of steps that the worker has done.
        step: u64,
    },
    /// The ranks of one worker have different states. All ranks return this error.
    #[error(
        "the ranks of worker {rank} do not continue from the same step; give all of them the same state, or none of them one"
    )]
    StateMismatch {
        /// The worker whose ranks differ, not a rank of the job.
        rank: Rank,
    },
    /// The model has no trained parameters.
    #[error(
        "the model has no trainable parameters; put it on a device with autodiff, as in `device.autodiff()`"
    )]
    NoParameters,
    /// A state belongs to another model.
    #[error(
        "the state is of {found} trainable elements, and the model has {expected}; resume the model that it was saved with"
    )]
    OtherModel {
        /// The number of trained elements in the state.
        found: usize,
        /// The number of trained elements in the model.
        expected: usize,
    },
    /// Parameters of workers differ from those of the last exchange by infinity or NaN. All workers return this error.
    #[error(
        "the parameters of a worker are not finite after {step} steps; lower the learning rate of the inner optimizer, \
         or clip its gradients"
    )]
    NonFinite {
        /// The steps of this worker when the exchange ended.
        step: u64,
    },
    /// Some parameters are in an exchange, or were changed since the last one.
    #[error("the workers are between two exchanges; call `finish` before `state`")]
    UnfinishedRound,
    /// A parameter cannot be read from its device.
    #[error("cannot read parameter {parameter} from its device: {cause}")]
    Unreadable {
        /// The path of the parameter in the model.
        parameter: String,
        /// The error of the backend, as text.
        cause: String,
    },
    /// The model or a rank failed; the message names the rank at fault.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<CollectiveError> for DilocoError {
    fn from(error: CollectiveError) -> Self {
        Self::Train(error.into())
    }
}
