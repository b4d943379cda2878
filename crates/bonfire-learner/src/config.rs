//! What a training with Burn's learner may be given beside the ranks.

use crate::kept::CompressionCheckpoints;
use crate::timings::StepTimings;
use bonfire_train::DdpConfig;

/// How a training with Burn's learner goes, the same on every rank. A [`DdpConfig`] alone will do.
///
/// ```
/// use bonfire_learner::{LearnerConfig, StepTimings};
/// use bonfire_train::DdpConfig;
///
/// let timings = StepTimings::new();
/// let config = LearnerConfig::from(DdpConfig::default()).timed(&timings);
/// # drop(config);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LearnerConfig {
    pub(crate) ddp: DdpConfig,
    pub(crate) kept: Option<CompressionCheckpoints>,
    pub(crate) timings: Option<StepTimings>,
}

impl LearnerConfig {
    /// Keeps what compression leaves out of the gradients with the checkpoints of the learner.
    #[must_use]
    pub fn keeping(mut self, kept: &CompressionCheckpoints) -> Self {
        self.kept = Some(kept.clone());
        self
    }

    /// Tells `timings` of every step. Costs one message of 16 bytes from each rank to rank 0 per step.
    #[must_use]
    pub fn timed(mut self, timings: &StepTimings) -> Self {
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
