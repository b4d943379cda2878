//! The reducer's state of the present step.

use crate::TrainError;
use crate::loss::weights::{MicroBatches, Normalizer};
use crate::reducer::timing::Stopwatch;
use crate::values::Scale;

/// Values that are the same for all gradients of a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) scale: Scale,
    pub(super) normalizer: Normalizer,
    pub(super) micro_batches: MicroBatches,
    /// True if gradients are added to those of a later pass.
    pub(super) is_accumulating: bool,
    /// True if nothing is sent before the backward pass is over.
    pub(super) is_held: bool,
    /// True if layers of this rank exchange values with those of others.
    pub(super) exchanges: bool,
    /// An error of communication while the backward pass runs: it has no caller that takes it.
    pub(super) error: Option<TrainError>,
    /// Waiting for the weights of other ranks' batches, before the first bucket can be sent.
    pub(super) waited: Stopwatch,
    /// Waiting for the device's work of the backward pass.
    pub(super) computed: Stopwatch,
}

impl Step {
    pub(super) fn new(scale: Scale, normalizer: Normalizer) -> Self {
        Self {
            scale,
            normalizer,
            micro_batches: MicroBatches::default(),
            is_accumulating: false,
            is_held: false,
            exchanges: false,
            error: None,
            waited: Stopwatch::default(),
            computed: Stopwatch::default(),
        }
    }
}
