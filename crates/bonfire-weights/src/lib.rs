//! Files of parameters that other programs have written, or will read: safetensors, and what `torch.save` writes.
//!
//! A [`WeightsFile`] is loaded into a Burn model by name and shape, and a [`LoadReport`] lists every tensor and every
//! parameter with its outcome: nothing is skipped silently. An [`Export`] writes one tensor at a time. A [`Dispatch`]
//! places a model on several devices, in host memory and in its file by a device map.

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
