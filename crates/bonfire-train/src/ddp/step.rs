//! What a step leaves.

use crate::{Gradients, Loss, StepTiming};

/// What [`Ddp::backward`](super::Ddp::backward) returns.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<T = ()> {
    /// The mean of all ranks' gradients, the same bits on every rank.
    pub gradients: Gradients,
    /// The loss of this rank's batch, detached from its graph; of the last one, if there were several.
    pub loss: Loss,
    /// What the forward pass returned besides the loss.
    pub output: T,
    /// Where the time went.
    pub timing: StepTiming,
}

/// What [`Ddp::no_sync`](super::Ddp::no_sync) returns: its gradients stay with the
/// [`Ddp`](super::Ddp).
#[derive(Debug)]
#[non_exhaustive]
pub struct MicroStep<T = ()> {
    /// The loss of the batch, detached from its graph.
    pub loss: Loss,
    /// What the forward pass returned besides the loss.
    pub output: T,
}
