//! The pictures: one folder, divided into a training and a validation part.

use std::sync::Arc;

use anyhow::Result;
use bonfire::World;
use bonfire::data::{
    ImageFolder, LastBatch, Loader, Normalize, PictureBatches, Pictures, Remainder, SamplerState,
    Subset, TransformError, Transforms, split_pictures,
};
use burn::tensor::Device;

use crate::options::Options;

#[derive(Debug)]
pub struct Data {
    training: Arc<Subset>,
    validation: Arc<Subset>,
}

#[derive(Debug)]
pub struct Share {
    pub loader: Loader,
    pub start: SamplerState,
    pub batches: PictureBatches,
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

    /// Returns this rank's share of training pictures: random parts, shuffled anew every epoch, in full batches only.
    ///
    /// # Errors
    /// If the size of pictures is 0.
    pub fn training(&self, options: &Options, world: &World) -> Result<Share, TransformError> {
        let loader = Loader::new(world, self.training.count(), options.batch_size.get())
            .with_shuffle(options.seed)
            .with_last_batch(LastBatch::Drop);
        let transforms = Transforms::training(options.size.get())?;
        let device = world.device().autodiff();
        Ok(Share {
            start: loader.state(),
            loader,
            batches: batches(&self.training, transforms, options, device),
        })
    }

    /// Returns this rank's share of validation pictures: the middle of every picture, each picture on one rank.
    ///
    /// # Errors
    /// If the size of pictures is 0.
    pub fn validation(&self, options: &Options, world: &World) -> Result<Share, TransformError> {
        let loader = Loader::new(world, self.validation.count(), options.batch_size.get())
            .with_remainder(Remainder::Exact);
        let size = options.size.get();
        // 256 for 224.
        let transforms = Transforms::evaluation(size * 8 / 7, size)?;
        Ok(Share {
            start: loader.state(),
            loader,
            batches: batches(&self.validation, transforms, options, world.device()),
        })
    }
}

fn batches(
    pictures: &Arc<Subset>,
    transforms: Transforms,
    options: &Options,
    device: Device,
) -> PictureBatches {
    let (pictures, normalize) = (Arc::clone(pictures), Normalize::imagenet());
    PictureBatches::new(pictures, transforms, normalize, options.seed, device)
}
