//! Batch normalisation whose statistics may be those of all ranks' batches together.
//!
//! Ranks exchange count, mean and sum of squared deviations in the forward pass, and two sums in the backward pass;
//! everything else stays where it is. Follows Ioffe and Szegedy (2015) for the layer, Chan, Golub and LeVeque (1979)
//! for merging statistics, and PyTorch's `SyncBatchNorm` for the division of the work between the passes.
//!
//! Must never exchange anything in evaluation, and never wait for a rank that has ended its step.

mod batch_norm;
mod convert;
#[cfg(feature = "flex")]
mod flex;
mod normalize;
mod statistic;

pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use convert::{convert_sync_batch_norm, convert_sync_batch_norm_in};
pub use statistic::RunningStatistic;

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
