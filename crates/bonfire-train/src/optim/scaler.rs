//! A loss scale that adapts itself, so that small gradients survive in 16 bits.
//!
//! The loss is multiplied with the scale before the backward pass, and the gradients are divided by it after the
//! ranks have averaged them. Where a number overflows on any rank, the average does on all, so all ranks skip the
//! step together. The rule is that of DeepSpeed's `DynamicLossScaler` with `raise_error_at_min_scale` (after
//! Micikevicius et al. 2018): double after a window without an overflow; at an overflow use up patience, then halve,
//! at every further one, until a window without any gives the patience back.

use bonfire_optim::ScalerConfig;
use serde::{Deserialize, Serialize};

use crate::optim::gradients::Gradients;
use crate::{Loss, TrainError};

/// Scales losses and unscales gradients. It is the same on every rank, and part of a checkpoint.
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
    /// Number of overflows from here until the scale halves.
    patience: u32,
    skipped: u64,
    /// Overflows since the last step without one. A checkpoint without it means none.
    #[serde(default)]
    in_a_row: u32,
}

/// Overflows in a row at which a training ends. An adaptive scale falls from 2^100 to 1 in as many.
const OVERFLOWS_MAX: u32 = 100;

impl LossScaler {
    /// Makes a scaler at its initial scale.
    pub fn new(config: ScalerConfig) -> Self {
        Self {
            scale: config.initial,
            steady: 0,
            patience: patience(&config),
            skipped: 0,
            in_a_row: 0,
            config,
        }
    }

    /// Returns the scaler of a checkpoint, if it has the same configuration; else this one.
    #[must_use]
    pub fn or_resumed(self, saved: Self) -> Self {
        if saved.config == self.config { saved } else { self }
    }

    /// Returns the loss scale of the next step.
    pub fn scale_factor(&self) -> f64 {
        self.scale
    }

    /// Returns the number of skipped steps so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Multiplies a loss by the scale in the backward pass. Its reported value stays unscaled.
    pub fn scale(&self, loss: impl Into<Loss>) -> Loss {
        loss.into().scaled(self.scale)
    }

    /// Returns the gradients without the scale, or `None` if one of their numbers is infinite or NaN. Then the step
    /// must be skipped, and the scale falls if that happened before.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`] if the device fails; on all ranks [`TrainError::LossScaleTooSmall`], if
    /// gradients overflow at the smallest scale, and [`TrainError::AlwaysOverflows`], if they do in 100 steps in a
    /// row.
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
        self.in_a_row += 1;
        if self.in_a_row >= OVERFLOWS_MAX {
            return Err(TrainError::AlwaysOverflows {
                parameter: parameter.to_owned(),
                steps: self.in_a_row,
                scale: self.scale,
            });
        }
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
        self.in_a_row = 0;
        self.steady = self.steady.saturating_add(1);
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
        // An overflow starts the window again, though it does not change the scale yet.
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
    fn a_scale_that_stays_and_always_overflows_is_an_error() {
        let config = ScalerConfig::default().with_initial(1024.0).with_min(1024.0);
        let mut scaler = LossScaler::new(config.with_hysteresis(u32::MAX));
        for _ in 0..2 {
            for _ in 1..OVERFLOWS_MAX {
                assert_eq!(overflow(&mut scaler), 1024.0);
            }
            scaler.succeeded();
        }
        for _ in 1..OVERFLOWS_MAX {
            overflow(&mut scaler);
        }
        let error = scaler.overflowed("layer.bias").unwrap_err().to_string();
        assert!(error.contains("layer.bias was infinite or NaN in 100 steps"), "{error}");
    }

    #[test]
    fn a_scaler_of_another_configuration_begins_again() {
        let mut saved = LossScaler::default();
        assert_eq!(overflow(&mut saved), 65536.0);
        assert_eq!(LossScaler::default().or_resumed(saved.clone()), saved);
        let other = scaler(7, 2);
        assert_eq!(other.clone().or_resumed(saved), other);
    }

    #[cfg(feature = "flex")]
    #[test]
    fn a_loss_of_16_bits_is_scaled_in_32() {
        use burn::tensor::{DType, Device, Tensor};
        let loss = Tensor::<1>::from_floats([2.5], &Device::flex()).cast(DType::F16);
        let (start, _) = LossScaler::default().scale(loss).split().unwrap();
        assert_eq!(start.into_scalar::<f32>(), 2.5 * 65536.0);
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
