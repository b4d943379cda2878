//! Pictures with classes: where they come from, how they are changed at random, and the batches that a model takes.
//!
//! The transform of a picture is a pure function of the seed, the epoch and the picture's index, so it
//! does not depend on the number of ranks or of worker threads. The transformations follow
//! torchvision's (`torchvision/transforms/transforms.py`), their resampling follows Pillow's
//! (`src/libImaging/Resample.c`), so that what was trained there meets the same pictures here.

mod archive;
mod batch;
mod cifar;
mod dummy;
mod error;
mod folder;
mod jpeg;
mod normalize;
mod picture;
mod pictures;
mod resample;
mod split;
mod transform;

pub use batch::{PictureBatch, PictureBatches};
pub use cifar::{Cifar10, CifarPart};
pub use dummy::{DummyConfig, DummyPictures};
pub use error::{PictureError, TransformError};
pub use folder::ImageFolder;
pub use normalize::Normalize;
pub use picture::{Picture, PictureSize};
pub use pictures::Pictures;
pub use split::{Subset, split_pictures};
pub use transform::{PictureSample, Transform, Transforms};

#[cfg(test)]
mod tests;
#[cfg(test)]
use tests::fixtures;
