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

/// Converts the types of a path with `new`.
macro_rules! from_paths {
    ($Type:ident) => {
        super::from_paths!($Type, &str, &std::path::Path, std::path::PathBuf);
    };
    ($Type:ident, $($Path:ty),+) => {$(
        impl From<$Path> for $Type {
            fn from(path: $Path) -> Self {
                Self::new(path)
            }
        }
    )+};
}
use from_paths;

pub use error::FileError;
pub use export::Export;
pub use file::{WeightsFile, WeightsLoader};
pub use matching::{Matched, ModelTensor};
pub use report::{LoadReport, ShapeDifference};
