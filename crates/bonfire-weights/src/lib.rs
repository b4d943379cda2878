//! Files of parameters that other programs have written, or will read: safetensors, and what `torch.save` writes.
//!
//! A [`WeightsFile`] is loaded into a Burn model by name and shape, and a [`LoadReport`] lists what became of
//! every tensor and every parameter: nothing is skipped silently. An [`Export`] writes one tensor at a time.

#![forbid(unsafe_code)]

mod adapter;
mod error;
mod export;
mod file;
mod report;

pub use error::FileError;
pub use export::Export;
pub use file::{WeightsFile, WeightsLoader};
pub use report::{LoadReport, ShapeDifference};
