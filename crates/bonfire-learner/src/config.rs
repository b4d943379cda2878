//! Configuration of a training with Burn's learner, beside the ranks.

use crate::compression_checkpoints::CompressionCheckpoints;
use crate::output::Outputs;
use crate::timings::StepTimings;
use bonfire_train::DdpConfig;

/// Configuration of a training with Burn's learner, the same on every rank. A [`DdpConfig`] converts into it.
///
/// ```
/// # mod bonfire { pub use bonfire_train::DdpConfig; pub mod learner { pub use bonfire_learner::*; } }
/// use bonfire::DdpConfig;
/// use bonfire::learner::{LearnerConfig, StepTimings};
///
/// let timings = StepTimings::new();
/// let config = LearnerConfig::from(DdpConfig::default()).with_timings(&timings);
/// # drop(config);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LearnerConfig {
    pub(crate) ddp: DdpConfig,
    pub(crate) compression_checkpoints: Option<CompressionCheckpoints>,
    pub(crate) timings: Option<StepTimings>,
    pub(crate) outputs: Outputs,
    pub(crate) check: GradientCheck,
}

/// The frequency of checks of averaged gradients, before the optimizer has them. A check waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientCheck {
    /// Every step: a gradient that is infinite or NaN ends the training on all ranks.
    #[default]
    EveryStep,
    /// Never: steps are not waited for, and a NaN reaches the parameters.
    Never,
}

impl LearnerConfig {
    /// Saves the error feedback of compression with the checkpoints of the learner.
    #[must_use]
    pub fn with_compression_checkpoints(mut self, kept: &CompressionCheckpoints) -> Self {
        self.compression_checkpoints = Some(kept.clone());
        self
    }

    /// Sets the outputs of other ranks that the metrics of rank 0 see, beside losses.
    #[must_use]
    pub fn with_outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Checks gradients in every step, or never.
    #[must_use]
    pub fn with_check(mut self, check: GradientCheck) -> Self {
        self.check = check;
        self
    }

    /// Records every step in `timings`. Costs one message of 16 bytes from each rank to rank 0 per step.
    #[must_use]
    pub fn with_timings(mut self, timings: &StepTimings) -> Self {
        self.timings = Some(timings.clone());
        self
    }
}

impl From<DdpConfig> for LearnerConfig {
    fn from(ddp: DdpConfig) -> Self {
        Self { ddp, ..Self::default() }
    }
}
