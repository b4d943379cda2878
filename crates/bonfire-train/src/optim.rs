//! The operations between gradients and the optimizer: clipping, scaled losses.

pub(crate) mod gradients;
pub(crate) mod scaler;
