//! What comes between gradients and the optimizer: clipping, scaled losses, learning rates.

pub(crate) mod global_batch;
pub(crate) mod gradients;
pub(crate) mod scaler;
pub(crate) mod schedule;
