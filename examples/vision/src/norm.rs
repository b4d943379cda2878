//! The normalisation layer of all models here, named in one place.

/// Batch normalisation over `[batch, channels, ...]`.
pub use burn::nn::BatchNorm;
pub use burn::nn::BatchNormConfig;
