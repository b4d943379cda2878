//! A loss scale that adapts itself, so that small gradients survive in 16 bits.
//!
//! The loss is multiplied with the scale before the backward pass, and the gradients are divided by
//! it after the ranks have averaged them. Where a number overflows on any rank, the average does on
//! all, so all ranks skip the step together. The rule is that of DeepSpeed's dynamic loss scale (after
//! Micikevicius et al. 2018): halve at an overflow, double after a window without one.

use burn::module::Module;
use burn::optim::GradientsParams;
use serde::{Deserialize, Serialize};

use crate::gradients::{non_finite, scaled};
use crate::{Loss, TrainError};

/// How a [`LossScaler`] starts and adapts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerConfig {
    /// The first scale.
    pub initial: f64,
    /// After so many steps without an overflow the scale doubles.
    pub window: u32,
    /// At which overflow in a row, counted since the scale last changed, it halves; from 1.
    pub hysteresis: u32,
    /// It never falls below this.
    pub min: f64,
}

impl Default for ScalerConfig {
    /// 2^16, 1000, 2 and 1.
    fn default() -> Self {
        Self {
            initial: 65536.0,
            window: 1000,
            hysteresis: 2,
            min: 1.0,
        }
    }
}

/// Scales losses and gradients. It is the same on every rank, and part of a checkpoint.
///
/// ```no_run
/// # use bonfire_train::{Ddp, LossScaler, TrainError};
/// # use burn::{Tensor, module::Module, optim::ModuleOptimizer};
/// # fn step<M: Module>(ddp: &mut Ddp<M>, loss: impl Fn(&M) -> Tensor<1>,
/// #     optimizer: &mut ModuleOptimizer, scaler: &mut LossScaler) -> Result<(), TrainError> {
/// let gradients = ddp.backward(|model| scaler.scale(loss(model)))?;
/// // Nothing if a number overflowed: on all ranks, or on none.
/// if let Some(gradients) = scaler.unscale(ddp.module(), gradients)? {
///     ddp.step(optimizer, 1e-3, gradients);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    config: ScalerConfig,
    scale: f64,
    /// Steps without an overflow since the scale last changed or a step overflowed.
    steady: u32,
    /// Overflows that are left before the scale halves.
    patience: u32,
    skipped: u64,
}

impl LossScaler {
    /// A scaler at its initial scale.
    pub fn new(config: ScalerConfig) -> Self {
        Self {
            scale: config.initial,
            steady: 0,
            patience: config.hysteresis.max(1),
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

    /// A loss, multiplied with the scale. [`Ddp::last_loss`](crate::Ddp::last_loss) then has the
    /// scale in it, too.
    pub fn scale(&self, loss: impl Into<Loss>) -> Loss {
        let mut loss = loss.into();
        loss.tensor = loss.tensor.mul_scalar(self.scale);
        loss
    }

    /// The gradients without the scale, or nothing if one of their numbers is infinite or none. Then
    /// the step is to be skipped, and the scale falls if that happened before.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`] if the device does not say.
    pub fn unscale<M: Module>(
        &mut self,
        module: &M,
        gradients: GradientsParams,
    ) -> Result<Option<GradientsParams>, TrainError> {
        let broken = non_finite(module, &gradients)?;
        let scale = self.scale;
        if let Some(parameter) = broken.first() {
            self.overflowed();
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
        Ok(Some(scaled(module, gradients, 1.0 / scale)))
    }

    fn overflowed(&mut self) {
        self.steady = 0;
        self.skipped += 1;
        if self.patience > 1 {
            self.patience -= 1;
        } else {
            self.change(self.scale / 2.0);
        }
    }

    fn succeeded(&mut self) {
        self.steady += 1;
        if self.steady >= self.config.window {
            self.change(self.scale * 2.0);
        }
    }

    fn change(&mut self, scale: f64) {
        self.scale = scale.max(self.config.min);
        self.steady = 0;
        self.patience = self.config.hysteresis.max(1);
    }
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
        LossScaler::new(ScalerConfig {
            window,
            hysteresis,
            ..ScalerConfig::default()
        })
    }

    #[test]
    fn the_scale_doubles_after_a_window_without_overflow() {
        let mut scaler = scaler(3, 2);
        for expected in [65536.0, 65536.0, 131_072.0, 131_072.0] {
            scaler.succeeded();
            assert_eq!(scaler.scale_factor(), expected);
        }
        // An overflow starts the window anew, though it does not change the scale yet.
        scaler.overflowed();
        scaler.succeeded();
        scaler.succeeded();
        assert_eq!(scaler.scale_factor(), 131_072.0);
        scaler.succeeded();
        assert_eq!(scaler.scale_factor(), 262_144.0);
    }

    #[test]
    fn the_scale_halves_at_the_second_overflow_and_stays_above_its_minimum() {
        let mut scaler = scaler(1000, 2);
        scaler.overflowed();
        assert_eq!(scaler.scale_factor(), 65536.0);
        scaler.overflowed();
        assert_eq!(scaler.scale_factor(), 32768.0);
        for _ in 0..100 {
            scaler.overflowed();
        }
        assert_eq!((scaler.scale_factor(), scaler.skipped()), (1.0, 102));
    }

    #[test]
    fn without_hysteresis_every_overflow_halves() {
        for hysteresis in [0, 1] {
            let mut scaler = scaler(1000, hysteresis);
            scaler.overflowed();
            assert_eq!(scaler.scale_factor(), 32768.0);
        }
    }

    #[test]
    fn a_saved_scaler_goes_on() {
        let mut first = scaler(5, 2);
        (0..3).for_each(|_| first.succeeded());
        first.overflowed();
        let text = serde_json::to_string(&first).unwrap();
        let mut again: LossScaler = serde_json::from_str(&text).unwrap();
        first.overflowed();
        again.overflowed();
        assert_eq!(first, again);
    }
}
