//! Files of parameters that other programs have written, or will read: safetensors, and what `torch.save` writes.
//!
//! A [`WeightsFile`] is loaded into a Burn model by name and shape, and a [`LoadReport`] lists what became of
//! every tensor and every parameter: nothing is skipped silently. An [`Export`] writes one tensor at a time. A
//! [`Dispatch`] puts a model on several devices, in host memory, and leaves it in its file, as a device map says.

#![forbid(unsafe_code)]

mod adapter;
mod error;
mod export;
mod file;
mod kind;
mod names;
#[cfg(feature = "flex")]
mod place;
mod report;
mod safetensors_file;

pub use bonfire_plan::device_map;
pub use error::FileError;
pub use export::Export;
pub use file::{WeightsFile, WeightsLoader};
#[cfg(feature = "flex")]
pub use place::{Dispatch, PlaceError, device_of, infer, module_tree};
pub use report::{LoadReport, ShapeDifference};
