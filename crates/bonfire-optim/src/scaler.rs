//! How a loss is scaled.

use serde::{Deserialize, Serialize};

/// The configuration of a `LossScaler`: how the scale of a loss starts and adapts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ScalerConfig {
    /// The first scale.
    pub initial: f64,
    /// After so many steps without an overflow the scale doubles.
    pub window: u32,
    /// At which overflow the scale halves, from 1. Every further one halves it, too. The count starts
    /// anew with each window without an overflow.
    pub hysteresis: u32,
    /// Whether the count starts anew with each step without an overflow, so that only overflows in a row
    /// halve the scale. A checkpoint without it means no.
    pub consecutive_hysteresis: bool,
    /// It never falls below this. An overflow that would make it is an error: no scale helps.
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
    /// The same with another [`initial`](Self::initial).
    #[must_use]
    pub fn with_initial(self, initial: f64) -> Self {
        Self { initial, ..self }
    }

    /// The same with another [`window`](Self::window).
    #[must_use]
    pub fn with_window(self, window: u32) -> Self {
        Self { window, ..self }
    }

    /// The same with another [`hysteresis`](Self::hysteresis).
    #[must_use]
    pub fn with_hysteresis(self, hysteresis: u32) -> Self {
        Self { hysteresis, ..self }
    }

    /// The same with another [`consecutive_hysteresis`](Self::consecutive_hysteresis).
    #[must_use]
    pub fn with_consecutive_hysteresis(self, consecutive_hysteresis: bool) -> Self {
        Self {
            consecutive_hysteresis,
            ..self
        }
    }

    /// The same with another [`min`](Self::min).
    #[must_use]
    pub fn with_min(self, min: f64) -> Self {
        Self { min, ..self }
    }
}
