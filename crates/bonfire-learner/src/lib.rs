//! A training strategy for Burn's own learner, `burn::train::SupervisedTraining`: one rank per device.
//!
//! Every rank runs the learner with its own share of the data; gradients are averaged through
//! [`Ddp`](bonfire_train::Ddp)'s buckets while `TrainStep::step` runs its backward pass. Rank 0 sees the losses of all
//! ranks, or all that they computed ([`Outputs`]), so its checkpoints, early stopping and display are those of the
//! complete training; the other ranks follow it. Between two steps all ranks exchange their numbers of samples and
//! requests to stop, so none waits for a finished rank.

#![forbid(unsafe_code)]

mod compression_checkpoints;
mod config;
mod distributed;
mod error;
mod local_batches;
mod model;
mod output;
mod records;
mod run;
mod strategy;
mod timings;

pub use compression_checkpoints::CompressionCheckpoints;
pub use config::{GradientCheck, LearnerConfig};
pub use distributed::DistributedTraining;
pub use error::LearnerError;
pub use model::DistributedModel;
pub use output::{Outputs, StepOutput, TensorMessage, counted};
pub use timings::{StepTimeMetric, StepTimings};

#[cfg(test)]
mod tests;
