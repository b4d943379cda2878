//! Files of parameters that other programs have written, or will read: safetensors, and what `torch.save` writes.
//!
//! A [`WeightsFile`] is loaded into a Burn model by name and shape, and a [`LoadReport`] lists every tensor and every
//! parameter with its outcome: nothing is skipped silently. An [`Export`] writes one tensor at a time.

mod adapter;
mod error;
mod export;
mod file;
mod kind;
mod matching;
mod names;
mod report;
mod safetensors_file;

pub use error::FileError;
pub use export::Export;
pub use file::{WeightsFile, WeightsLoader};
pub use matching::{Matched, ModelTensor};
pub use report::{LoadReport, ShapeDifference};
