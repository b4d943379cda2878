//! Models that are cut over several ranks.
//!
//! [`Pipeline`] runs the stages of a model one behind the other, in the order that a schedule of
//! `bonfire-plan` says.

#![forbid(unsafe_code)]

mod pipeline;

pub use pipeline::error::PipelineError;
pub use pipeline::output::{IntoOutput, Output};
pub use pipeline::pass::Pass;
pub use pipeline::timing::PipelineTiming;
pub use pipeline::weights::WeightGradients;
pub use pipeline::{Axes, Pipeline, PipelineStep};
