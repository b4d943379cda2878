//! The configuration of loss scaling.

use serde::{Deserialize, Serialize};

crate::config! {
    /// The configuration of a `LossScaler`: how the scale of a loss starts and adapts. The defaults are DeepSpeed's.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    ScalerConfig {
        /// The scale of the first step.
        initial: f64 = 65536.0 => with_initial,
        /// Number of steps without an overflow until the scale doubles.
        window: u32 = 1000 => with_window,
        /// Number of overflows until the scale halves, from 1. Every further one halves it, too. The count starts
        /// again with each window without an overflow.
        hysteresis: u32 = 2 => with_hysteresis,
        /// Restarts the count with each step without an overflow, so that only overflows in a row halve the scale. A
        /// checkpoint without it means false.
        consecutive_hysteresis: bool = false => with_consecutive_hysteresis,
        /// The lower bound of the scale. An overflow that would lower it further is an error: no scale helps.
        min: f64 = 1.0 => with_min,
    }
}
