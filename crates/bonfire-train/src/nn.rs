//! Layers and operations of models that replace Burn's.
//!
//! Must never depend on a [`Ddp`](crate::Ddp): they are in models.

mod convolution;
pub(crate) mod custom_gradient;
mod embedding;
mod gelu;
#[cfg(feature = "flex")]
mod memory;
mod norm;
pub(crate) mod recompute;
mod relu;

pub use convolution::conv2d;
pub use embedding::embedding;
pub use gelu::gelu;
pub use norm::{
    BatchNorm, BatchNormConfig, RunningStatistic, convert_sync_batch_norm,
    convert_sync_batch_norm_in,
};
pub use recompute::{InputPlacement, Recompute, RngReplay, SegmentInputs, recompute};
pub use relu::relu;
