//! The results of a step, and its options.

use bonfire_optim::DeferredScale;

use crate::{Clip, Gradients, Loss, LossScaler, StepTiming, TrainError};

/// The result of [`Ddp::backward`](super::Ddp::backward): gradients, loss and output.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<T = ()> {
    /// The mean of all ranks' gradients, the same bits on every rank.
    pub gradients: Gradients,
    /// The loss of this rank's batch, detached from its graph; of the last one, if there were several.
    pub loss: Loss,
    /// The forward pass's output besides the loss.
    pub output: T,
    /// The time of the step, by part.
    pub timing: StepTiming,
}

/// The result of [`Ddp::no_sync`](super::Ddp::no_sync); its gradients stay with the [`Ddp`](super::Ddp).
#[derive(Debug)]
#[non_exhaustive]
pub struct MicroStep<T = ()> {
    /// The loss of the batch, detached from its graph.
    pub loss: Loss,
    /// The forward pass's output besides the loss.
    pub output: T,
}

/// Options of [`Ddp::step_with`](super::Ddp::step_with): the operations on gradients before the optimizer's.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct StepOptions<'a> {
    /// Takes the scale of the loss out of the gradients. A step in which they overflow is skipped.
    pub scaler: Option<&'a mut LossScaler>,
    /// Clips the gradients.
    pub clip: Option<Clip>,
    /// Leaves the factors of clipping and of the scale to the optimizers that have this handle, which saves a pass over
    /// all gradients. Parameters of 32 and 64 bits have the same bits. For those of 16 bits a gradient is not rounded
    /// to 16 bits before the step.
    pub deferred: Option<&'a DeferredScale>,
}

impl<'a> StepOptions<'a> {
    /// Sets the [`scaler`](Self::scaler) of the loss.
    #[must_use]
    pub fn with_scaler(self, scaler: impl Into<Option<&'a mut LossScaler>>) -> Self {
        let scaler = scaler.into();
        Self { scaler, ..self }
    }

    /// Sets how gradients are [clipped](Self::clip).
    #[must_use]
    pub fn with_clip(self, clip: impl Into<Option<Clip>>) -> Self {
        let clip = clip.into();
        Self { clip, ..self }
    }

    /// Sets the handle of optimizers that apply [deferred](Self::deferred) factors.
    #[must_use]
    pub fn with_deferred_scale(self, deferred: impl Into<Option<&'a DeferredScale>>) -> Self {
        let deferred = deferred.into();
        Self { deferred, ..self }
    }

    /// Prepares gradients for [`Ddp::step`](super::Ddp::step); `None` if they overflowed on any rank and all skip the
    /// step.
    ///
    /// # Errors
    /// As [`LossScaler::unscale`] and [`Gradients::clip`].
    pub(super) fn apply(self, gradients: Gradients) -> Result<Option<Gradients>, TrainError> {
        let gradients = match self.scaler {
            Some(scaler) => scaler.unscale(gradients)?,
            None => Some(gradients),
        };
        let Some(gradients) = gradients else {
            return Ok(None);
        };
        let gradients = match self.clip {
            Some(clip) => gradients.clip(clip)?,
            None => gradients,
        };
        Ok(Some(gradients.defer_scale(self.deferred)))
    }
}
