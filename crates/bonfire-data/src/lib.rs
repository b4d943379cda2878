//! Distributes the data of a training to its ranks.
//!
//! [`DistributedSampler`] selects the samples of a rank, [`Loader`] makes batches of their indices, and
//! [`DatasetLoader`] is Burn's `DataLoader` over a `Dataset` distributed in the same way. With feature `images` there
//! are datasets of pictures.
//!
//! Nothing here communicates: everything is a pure function of seed, epoch, rank and world size.

#![forbid(unsafe_code)]

mod dataset_loader;
mod error;
#[cfg(feature = "images")]
mod images;
mod loader;
mod prefetch;
mod random;
mod sampler;

pub use dataset_loader::{DatasetBatches, DatasetLoader};
pub use error::DataError;
#[cfg(feature = "images")]
pub use images::{
    Cifar10, CifarPart, DummyConfig, DummyPictures, ImageFolder, Normalize, Picture, PictureBatch,
    PictureBatches, PictureError, PictureSample, PictureSize, Pictures, Subset, Transform,
    TransformError, Transforms, split_pictures,
};
pub use loader::{EpochBatches, LastBatch, Loader};
pub use prefetch::{Prefetch, Prefetched, Prepared};
pub use sampler::{
    DistributedSampler, Order, Remainder, SampleWeights, SamplerState, UnusableWeights,
};
