//! The normalisation layer of all models here, named in one place.

/// Batch normalisation over `[batch, channels, ...]`, of one rank or of all.
pub use bonfire::nn::{BatchNorm, BatchNormConfig};
