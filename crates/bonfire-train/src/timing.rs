//! Where the time of a step went.

use std::time::Duration;

/// Where the time of one synchronised step went on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTiming {
    /// The forward and the backward pass, with the communication that they hide; of all
    /// micro-batches since the step before.
    pub forward_backward: Duration,
    /// What communication added: the time this rank stood still, waiting for gradients of other
    /// ranks after its own backward pass was done.
    pub exposed_communication: Duration,
}
