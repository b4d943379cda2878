//! A loss scale that adapts itself, so that small gradients survive in 16 bits.
//!
//! The loss is multiplied with the scale before the backward pass, and the gradients are divided by
//! it after the ranks have averaged them. Where a number overflows on any rank, the average does on
//! all, so all ranks skip the step together. The rule is that of DeepSpeed's `DynamicLossScaler` with
//! `raise_error_at_min_scale` (after Micikevicius et al. 2018): double after a window without an overflow;
//! at an overflow use up patience, then halve, at every further one, until a window without any gives the
//! patience back.

use bonfire_optim::ScalerConfig;
use serde::{Deserialize, Serialize};

use crate::optim::gradients::Gradients;
use crate::{Loss, TrainError};

/// Scales losses and gradients. It is the same on every rank, and part of a checkpoint.
///
/// ```no_run
/// # use bonfire_train::{Ddp, LossScaler, TrainError};
/// # use burn::{Tensor, module::Module, optim::ModuleOptimizer};
/// # fn step<M: Module>(ddp: &mut Ddp<M>, loss: impl Fn(&M) -> Tensor<1>,
/// #     optimizer: &mut ModuleOptimizer, scaler: &mut LossScaler) -> Result<(), TrainError> {
/// let step = ddp.backward(|model| scaler.scale(loss(model)))?;
/// // Nothing if a number overflowed: on all ranks, or on none.
/// if let Some(gradients) = scaler.unscale(step.gradients)? {
///     ddp.step(optimizer, 1e-3, gradients)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    config: ScalerConfig,
    scale: f64,
    /// Steps without an overflow since the scale last doubled or a step overflowed.
    steady: u32,
    /// At which overflow from here the scale halves.
    patience: u32,
    skipped: u64,
}

impl LossScaler {
    /// A scaler at its initial scale.
    pub fn new(config: ScalerConfig) -> Self {
        Self {
            scale: config.initial,
            steady: 0,
            patience: patience(&config),
            skipped: 0,
            config,
        }
    }

    /// The scale of the next step.
    pub fn scale_factor(&self) -> f64 {
        self.scale
    }

    /// How many steps were skipped so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// A loss that the backward pass multiplies with the scale. What is reported of it is unscaled.
    pub fn scale(&self, loss: impl Into<Loss>) -> Loss {
        loss.into().scaled(self.scale)
    }

    /// The gradients without the scale, or nothing if one of their numbers is infinite or none. Then
    /// the step is to be skipped, and the scale falls if that happened before.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`] if the device does not say, and [`TrainError::LossScaleTooSmall`],
    /// on all ranks, if gradients overflow at the smallest scale.
    pub fn unscale(&mut self, gradients: Gradients) -> Result<Option<Gradients>, TrainError> {
        let broken = gradients.non_finite()?;
        let scale = self.scale;
        if let Some(parameter) = broken.first() {
            self.overflowed(parameter)?;
            tracing::warn!(
                parameter,
                parameters = broken.len(),
                scale,
                next_scale = self.scale,
                "gradients overflowed; all ranks skip this step"
            );
            return Ok(None);
        }
        self.succeeded();
        Ok(Some(gradients.scaled(1.0 / scale)))
    }

    fn overflowed(&mut self, parameter: &str) -> Result<(), TrainError> {
        self.steady = 0;
        self.skipped += 1;
        if self.patience > 1 {
            self.patience -= 1;
            return Ok(());
        }
        if self.scale <= self.config.min {
            return Err(TrainError::LossScaleTooSmall {
                parameter: parameter.to_owned(),
                scale: self.scale,
            });
        }
        self.scale = (self.scale / 2.0).max(self.config.min);
        Ok(())
    }

    fn succeeded(&mut self) {
        self.steady += 1;
        let is_window = self.steady >= self.config.window;
        if is_window || self.config.consecutive_hysteresis {
            self.patience = patience(&self.config);
        }
        if is_window {
            self.scale *= 2.0;
            self.steady = 0;
        }
    }
}

/// At which overflow from here the scale halves.
fn patience(config: &ScalerConfig) -> u32 {
    config.hysteresis.max(1)
}

impl Default for LossScaler {
    fn default() -> Self {
        Self::new(ScalerConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(window: u32, hysteresis: u32) -> LossScaler {
        let config = ScalerConfig::default().with_window(window);
        LossScaler::new(config.with_hysteresis(hysteresis))
    }

    /// A step that overflows, and the scale after it.
    fn overflow(scaler: &mut LossScaler) -> f64 {
        scaler.overflowed("weight").unwrap();
        scaler.scale_factor()
    }

    #[test]
    fn the_scale_doubles_after_a_window_without_overflow() {
        let mut scaler = scaler(3, 2);
        for expected in [65536.0, 65536.0, 131_072.0, 131_072.0] {
            scaler.succeeded();
            assert_eq!(scaler.scale_factor(), expected);
        }
        // An overflow starts the window anew, though it does not change the scale yet.
        overflow(&mut scaler);
        scaler.succeeded();
        scaler.succeeded();
        assert_eq!(scaler.scale_factor(), 131_072.0);
        scaler.succeeded();
        assert_eq!(scaler.scale_factor(), 262_144.0);
    }

    #[test]
    fn from_the_second_overflow_on_every_one_halves_until_a_window_is_clean() {
        let mut scaler = scaler(3, 2);
        let scales: Vec<f64> = (0..3).map(|_| overflow(&mut scaler)).collect();
        assert_eq!(scales, [65536.0, 32768.0, 16384.0]);
        // Two good steps are no window.
        scaler.succeeded();
        scaler.succeeded();
        assert_eq!(overflow(&mut scaler), 8192.0);
        (0..3).for_each(|_| scaler.succeeded());
        assert_eq!(scaler.scale_factor(), 16384.0);
        assert_eq!(overflow(&mut scaler), 16384.0);
        assert_eq!(overflow(&mut scaler), 8192.0);
        assert_eq!(scaler.skipped(), 6);
    }

    #[test]
    fn consecutive_hysteresis_counts_overflows_in_a_row() {
        let config = ScalerConfig::default().with_consecutive_hysteresis(true);
        let mut scaler = LossScaler::new(config);
        for _ in 0..5 {
            assert_eq!(overflow(&mut scaler), 65536.0);
            scaler.succeeded();
        }
        assert_eq!(overflow(&mut scaler), 65536.0);
        assert_eq!(overflow(&mut scaler), 32768.0);
    }

    #[test]
    fn an_overflow_at_the_smallest_scale_is_an_error() {
        let mut scaler = scaler(1000, 2);
        // One of patience, 16 from 2^16 to 1.
        for _ in 0..17 {
            overflow(&mut scaler);
        }
        assert_eq!(scaler.scale_factor(), 1.0);
        let error = scaler.overflowed("layer.bias").unwrap_err().to_string();
        assert!(error.contains("layer.bias"), "{error}");
        assert_eq!(scaler.skipped(), 18);
    }

    #[test]
    fn without_hysteresis_every_overflow_halves() {
        for hysteresis in [0, 1] {
            assert_eq!(overflow(&mut scaler(1000, hysteresis)), 32768.0);
        }
    }

    #[test]
    fn a_saved_scaler_goes_on() {
        let mut first = scaler(5, 2);
        (0..3).for_each(|_| first.succeeded());
        overflow(&mut first);
        let text = serde_json::to_string(&first).unwrap();
        // One from before this field existed.
        let text = text.replace("\"consecutive_hysteresis\":false,", "");
        let mut again: LossScaler = serde_json::from_str(&text).unwrap();
        assert_eq!(overflow(&mut first), overflow(&mut again));
        assert_eq!(first, again);
    }
}
