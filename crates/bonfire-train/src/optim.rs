//! What comes between gradients and parameters: clipping, scaled losses, learning rates, optimizers.

pub(crate) mod fused;
pub(crate) mod global_batch;
pub(crate) mod gradients;
pub(crate) mod scaler;
pub(crate) mod schedule;
