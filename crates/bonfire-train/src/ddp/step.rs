//! The results of a step.

use crate::{Gradients, Loss, StepTiming};

/// The result of [`Ddp::backward`](super::Ddp::backward): gradients, loss and output.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<T = ()> {
    /// The mean of all ranks' gradients, the same bits on every rank.
    pub gradients: Gradients,
    /// The loss of this rank's batch, detached from its graph; of the last one, if there were several.
    pub loss: Loss,
    /// The forward pass's output besides the loss.
    pub output: T,
    /// The time of the step, by part.
    pub timing: StepTiming,
}

/// The result of [`Ddp::no_sync`](super::Ddp::no_sync); its gradients stay with the [`Ddp`](super::Ddp).
#[derive(Debug)]
#[non_exhaustive]
pub struct MicroStep<T = ()> {
    /// The loss of the batch, detached from its graph.
    pub loss: Loss,
    /// The forward pass's output besides the loss.
    pub output: T,
}
