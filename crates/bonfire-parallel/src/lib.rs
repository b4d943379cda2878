//! Models that are cut over several ranks.
//!
//! [`World::mesh`](bonfire_train::World::mesh) places each rank. Along its axis `tp`, ranks have parts of the same
//! layers: [`ColumnParallelLinear`], [`RowParallelLinear`], [`VocabParallelEmbedding`] and the
//! [`VocabParallelCrossEntropy`] over its rows. [`ops`] has the collectives that they are made of, with their
//! gradients. Along `cp`, ranks have different tokens of the same sequences, and [`ring_attention`] leads from one to
//! the others. Along `pp`, ranks have different layers: [`Pipeline`] runs the stages of a model one behind the other,
//! in the order of a schedule of `bonfire-plan`.
//!
//! A `Dispatch` places the parameters of one rank's model on several devices, in host memory and in its file, by a
//! device map.
//!
//! Tensors of CUDA devices that reach each other's memory are sent from device to device, others through host memory;
//! those of pipelines always through host memory.

#![forbid(unsafe_code)]

mod context;
mod error;
pub mod ops;
mod pipeline;
#[cfg(all(feature = "flex", feature = "weights"))]
mod place;
mod tensor;

pub use context::attention::{AttentionMask, self_attention};
pub use context::ring::ring_attention;
pub use context::zigzag::{context_loss, zigzag_ranges, zigzag_split};
pub use error::{ParallelError, or_end_pass};
pub use pipeline::error::PipelineError;
pub use pipeline::output::{IntoOutput, Output};
pub use pipeline::pass::Pass;
pub use pipeline::seconds::layer_seconds;
pub use pipeline::timing::PipelineTiming;
pub use pipeline::weights::WeightGradients;
pub use pipeline::{Axes, Pipeline, PipelineStep};
#[cfg(all(feature = "flex", feature = "weights"))]
pub use place::{Dispatch, PlaceError, device_of, infer, module_tree};
pub use tensor::cross_entropy::VocabParallelCrossEntropy;
pub use tensor::embedding::VocabParallelEmbedding;
pub use tensor::linear::{ColumnParallelLinear, RowParallelLinear};
pub use tensor::sequence::sequence_parallel;
