//! The data types of passes.

use serde::{Deserialize, Serialize};

/// The data type of forward and backward passes. Parameters stay as they are stored.
///
/// Burn computes in the type of its inputs and converts nothing by itself: a forward pass casts its inputs with
/// [`cast`](Self::cast), and its output is cast back to f32 before the loss, for which 16 bits are too coarse. Batch
/// normalisation stays in f32: give it inputs in f32. With [`F16`](Self::F16), use a
/// [`LossScaler`](crate::LossScaler).
///
/// ```no_run
/// # use bonfire_train::{Ddp, LossScaler, TrainError};
/// # use burn::{Tensor, nn::Linear, optim::ModuleOptimizer, tensor::FloatDType};
/// # fn step(ddp: &mut Ddp<Linear>, x: Tensor<2>, y: Tensor<2>, optimizer: &mut ModuleOptimizer,
/// #     scaler: &mut LossScaler) -> Result<(), TrainError> {
/// let precision = ddp.precision();
/// let step = ddp.backward(|model| {
///     let out = model.forward(precision.cast(x)).cast(FloatDType::F32);
///     scaler.scale((out - y).powi_scalar(2).mean())
/// })?;
/// if let Some(gradients) = scaler.unscale(step.gradients)? {
///     ddp.step(optimizer, 1e-3, gradients)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Precision {
    /// The type in which parameters are stored.
    #[default]
    F32,
    /// The range of f32, 8 significant bits. Needs no scaled loss.
    Bf16,
    /// 11 significant bits, numbers from 2^-24 to 65504.
    F16,
}
