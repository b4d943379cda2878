//! What a training with Burn's learner may be given beside the ranks.

use crate::kept::CompressionCheckpoints;
use crate::output::Outputs;
use crate::timings::StepTimings;
use bonfire_train::DdpConfig;

/// How a training with Burn's learner goes, the same on every rank. A [`DdpConfig`] alone will do.
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
    pub(crate) kept: Option<CompressionCheckpoints>,
    pub(crate) timings: Option<StepTimings>,
    pub(crate) outputs: Outputs,
    pub(crate) check: GradientCheck,
}

/// When averaged gradients are looked at before the optimizer has them. It waits for the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientCheck {
    /// In every step: one that is infinite or no number ends the training on all ranks.
    #[default]
    EveryStep,
    /// Never: a step is not waited for, and what is no number is learnt.
    Never,
}

impl LearnerConfig {
    /// Keeps what compression leaves out of the gradients with the checkpoints of the learner.
    #[must_use]
    pub fn with_compression_checkpoints(mut self, kept: &CompressionCheckpoints) -> Self {
        self.kept = Some(kept.clone());
        self
    }

    /// Shows the metrics of rank 0 more of the other ranks than their losses.
    #[must_use]
    pub fn with_outputs(mut self, outputs: Outputs) -> Self {
        self.outputs = outputs;
        self
    }

    /// Looks at gradients in every step, or never.
    #[must_use]
    pub fn with_check(mut self, check: GradientCheck) -> Self {
        self.check = check;
        self
    }

    /// Tells `timings` of every step. Costs one message of 16 bytes from each rank to rank 0 per step.
    #[must_use]
    pub fn with_timings(mut self, timings: &StepTimings) -> Self {
        self.timings = Some(timings.clone());
        self
    }
}

impl From<DdpConfig> for LearnerConfig {
    fn from(ddp: DdpConfig) -> Self {
        Self {
            ddp,
            ..Self::default()
        }
    }
}
