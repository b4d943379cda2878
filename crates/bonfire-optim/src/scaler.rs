//! The configuration of loss scaling.

use serde::{Deserialize, Serialize};

/// The configuration of a `LossScaler`: how the scale of a loss starts and adapts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ScalerConfig {
    /// The scale of the first step.
    pub initial: f64,
    /// Number of steps without an overflow until the scale doubles.
    pub window: u32,
    /// Number of overflows until the scale halves, from 1. Every further one halves it, too. The count starts anew
    /// with each window without an overflow.
    pub hysteresis: u32,
    /// Restarts the count with each step without an overflow, so that only overflows in a row halve the scale. A
    /// checkpoint without it means false.
    pub consecutive_hysteresis: bool,
    /// The lower bound of the scale. An overflow that would lower it further is an error: no scale helps.
    pub min: f64,
}

impl Default for ScalerConfig {
    /// DeepSpeed's: 2^16, 1000, 2, not consecutive, 1.
    fn default() -> Self {
        Self {
            initial: 65536.0,
            window: 1000,
            hysteresis: 2,
            consecutive_hysteresis: false,
            min: 1.0,
        }
    }
}

impl ScalerConfig {
    /// Sets [`initial`](Self::initial), the scale of the first step.
    #[must_use]
    pub fn with_initial(self, initial: f64) -> Self {
        Self { initial, ..self }
    }

    /// Sets the [`window`](Self::window) in steps.
    #[must_use]
    pub fn with_window(self, window: u32) -> Self {
        Self { window, ..self }
    }

    /// Sets the [`hysteresis`](Self::hysteresis) in overflows.
    #[must_use]
    pub fn with_hysteresis(self, hysteresis: u32) -> Self {
        Self { hysteresis, ..self }
    }

    /// Sets [`consecutive_hysteresis`](Self::consecutive_hysteresis), false by default.
    #[must_use]
    pub fn with_consecutive_hysteresis(self, consecutive_hysteresis: bool) -> Self {
        Self {
            consecutive_hysteresis,
            ..self
        }
    }

    /// Sets [`min`](Self::min), the lower bound of the scale.
    #[must_use]
    pub fn with_min(self, min: f64) -> Self {
        Self { min, ..self }
    }
}
