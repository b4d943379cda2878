//! Pictures and labels as a model takes them.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::picture::CHANNELS;
use super::{Normalize, PictureError, PictureSample, Pictures, Transforms};

/// Pictures with their labels, as tensors on one device.
#[derive(Clone, Debug)]
pub struct PictureBatch {
    /// The pictures: `[batch, 3, height, width]`, f32, normalized.
    pub pictures: Tensor<4>,
    /// The labels: `[batch]`, indices in [`Pictures::classes`].
    pub labels: Tensor<1, Int>,
}

/// Makes batches: reads pictures, transforms them, and copies them to a device.
///
/// It is shared by the threads of [`prefetch`](crate::EpochBatches::prefetch), where pictures are
/// decoded and transformed; clones share the source.
///
/// ```no_run
/// # mod bonfire { pub mod data { pub use bonfire_data::*; } }
/// use std::sync::Arc;
///
/// use bonfire::data::{
///     Cifar10, CifarPart, Loader, Normalize, PictureBatches, Prefetch, Transform, Transforms,
/// };
/// use burn::tensor::Device;
///
/// fn epoch(device: Device, loader: &mut Loader) -> Result<(), Box<dyn std::error::Error>> {
///     let pictures = Arc::new(Cifar10::open("cifar-10-binary.tar", CifarPart::Train)?);
///     let transforms = Transforms::new([
///         Transform::RandomCrop { size: 32, padding: 4 },
///         Transform::RandomHorizontalFlip,
///     ])?;
///     let batches =
///         PictureBatches::new(pictures, transforms, Normalize::cifar10(), 7, device);
///     let epoch = loader.epoch();
///     let prepare = move |indices: &[usize]| batches.batch(epoch, indices);
///     for prepared in loader.next_epoch().prefetch(Prefetch::default(), prepare)? {
///         let batch = prepared?.batch;
///         println!("{:?}", batch.pictures.dims());
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PictureBatches {
    source: Arc<dyn Pictures>,
    transforms: Transforms,
    normalize: Arc<Normalize>,
    device: Device,
    seed: u64,
}

impl PictureBatches {
    /// Makes batches of `source` on `device`. The random part of the transforms depends on `seed`, which is the same
    /// on every rank.
    pub fn new(
        source: Arc<dyn Pictures>,
        transforms: Transforms,
        normalize: Normalize,
        seed: u64,
        device: Device,
    ) -> Self {
        Self { source, transforms, normalize: Arc::new(normalize), device, seed }
    }

    /// Returns the pictures at `indices`, transformed as in `epoch`.
    ///
    /// # Errors
    /// [`PictureError`] if `indices` is empty or one is out of range, if a picture cannot be read or
    /// transformed, or if they do not all have the same size after it.
    pub fn batch(&self, epoch: u64, indices: &[usize]) -> Result<PictureBatch, PictureError> {
        let count = self.source.count();
        let outside = indices.iter().find(|&&index| index >= count);
        if let Some(&index) = outside {
            let name = self.source.name().to_owned();
            return Err(PictureError::NoSuchPicture { name, index, count });
        }
        let mut size = None;
        let mut values: Vec<f32> = Vec::new();
        for &index in indices {
            let picture = self.source.picture(index)?;
            let sample = PictureSample { seed: self.seed, epoch, index };
            let name = || format!("{index} of {}", self.source.name());
            let picture = self
                .transforms
                .apply(picture, sample)
                .map_err(|source| PictureError::Transform { name: name(), source })?;
            let (found, expected) = (picture.size(), *size.get_or_insert(picture.size()));
            if found != expected {
                return Err(PictureError::UnequalSizes { name: name(), found, expected });
            }
            if values.is_empty() {
                values.reserve_exact(indices.len() * picture.bytes().len());
            }
            self.normalize.append_planes(picture.bytes(), &mut values);
        }
        let Some(size) = size else {
            let name = self.source.name().to_owned();
            return Err(PictureError::EmptyBatch { name });
        };
        let shape = [indices.len(), CHANNELS, size.height, size.width];
        let labels: Vec<i64> =
            indices.iter().map(|&index| self.source.labels()[index] as i64).collect();
        Ok(PictureBatch {
            pictures: Tensor::from_data(TensorData::new(values, shape), (&self.device, DType::F32)),
            labels: Tensor::from_data(TensorData::new(labels, [indices.len()]), &self.device),
        })
    }
}

#[cfg(test)]
mod tests;
