//! What a reducer knows of the step under way.

use crate::values::Entering;

use crate::TrainError;
use crate::loss::weights::{MicroBatches, Normalizer};
use crate::reducer::timing::Stopwatch;

/// What is the same for all gradients of a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) entering: Entering,
    pub(super) normalizer: Normalizer,
    pub(super) micro_batches: MicroBatches,
    /// Whether gradients are added to those of a later pass.
    pub(super) is_accumulating: bool,
    /// Whether nothing leaves before the backward pass is over.
    pub(super) is_held: bool,
    /// Whether layers of this rank exchange something with those of others.
    pub(super) exchanges: bool,
    /// Of the communication while the backward pass runs: there is nobody to return it to.
    pub(super) error: Option<TrainError>,
    /// Waiting for what the other ranks' batches count, before the first bucket can travel.
    pub(super) waited: Stopwatch,
    /// Waiting for the device to end what the backward pass queued.
    pub(super) computed: Stopwatch,
}

impl Step {
    pub(super) fn new(entering: Entering, normalizer: Normalizer) -> Self {
        Self {
            entering,
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
