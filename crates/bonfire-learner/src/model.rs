//! Models that train on several ranks.

use burn_train::{InferenceStep, LearnerModel, TrainStep};

use crate::output::StepOutput;

/// A model of Burn's learner whose outputs rank 0 can see from all ranks. It is implemented for every [`LearnerModel`]
/// whose training and validation steps return a [`StepOutput`].
pub trait DistributedModel:
    LearnerModel + TrainStep<Output: StepOutput> + InferenceStep<Output: StepOutput>
{
}

impl<M> DistributedModel for M where
    M: LearnerModel + TrainStep<Output: StepOutput> + InferenceStep<Output: StepOutput>
{
}
