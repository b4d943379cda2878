//! The pictures: one folder, divided into a training and a validation part.

use std::sync::Arc;

use anyhow::Result;
use bonfire::World;
use bonfire::data::{
    ImageFolder, Normalize, PictureBatch, PictureBatches, Pictures, Subset, TransformError,
    Transforms, split_pictures,
};
use bonfire::trainer;
use burn::tensor::Device;

use crate::options::Options;

#[derive(Debug)]
pub struct Data {
    training: Arc<Subset>,
    validation: Arc<Subset>,
}

impl Data {
    /// Lists the folder and divides it; the same on every rank.
    pub fn open(options: &Options) -> Result<Self> {
        let folder = ImageFolder::open(&options.data)?;
        folder.expect_classes(options.num_classes.get())?;
        let folder: Arc<dyn Pictures> = Arc::new(folder);
        let (training, validation) = split_pictures(&folder, options.held_out, options.seed)?;
        Ok(Self { training: Arc::new(training), validation: Arc::new(validation) })
    }

    pub fn counts(&self) -> (usize, usize) {
        (self.training.count(), self.validation.count())
    }

    /// Returns the training pictures: random parts, others in every epoch.
    ///
    /// # Errors
    /// If the size of pictures is 0.
    pub fn training(
        &self,
        options: &Options,
        world: &World,
    ) -> Result<trainer::Data<PictureBatch>, TransformError> {
        let transforms = Transforms::training(options.size.get())?;
        Ok(batches(&self.training, transforms, options, world.device().autodiff()))
    }

    /// Returns the validation pictures: the middle of each.
    ///
    /// # Errors
    /// If the size of pictures is 0.
    pub fn validation(
        &self,
        options: &Options,
        world: &World,
    ) -> Result<trainer::Data<PictureBatch>, TransformError> {
        let size = options.size.get();
        // 256 for 224.
        let transforms = Transforms::evaluation(size * 8 / 7, size)?;
        Ok(batches(&self.validation, transforms, options, world.device()))
    }
}

fn batches(
    pictures: &Arc<Subset>,
    transforms: Transforms,
    options: &Options,
    device: Device,
) -> trainer::Data<PictureBatch> {
    let (count, normalize) = (pictures.count(), Normalize::imagenet());
    let pictures = Arc::clone(pictures);
    let batches = PictureBatches::new(pictures, transforms, normalize, options.seed, device);
    trainer::Data::try_by_epoch(count, move |epoch, indices| batches.batch(epoch, indices))
}
