//! The pictures: one folder, divided into those to learn from and those to be judged by.

use std::sync::Arc;

use anyhow::Result;
use bonfire::World;
use bonfire::data::{
    ImageFolder, LastBatch, Loader, Normalize, PictureBatches, Pictures, Remainder, SamplerState,
    Subset, TransformError, Transforms, split_pictures,
};
use burn::tensor::Device;

use crate::options::Options;

/// Both parts of a folder.
#[derive(Debug)]
pub struct Data {
    training: Arc<Subset>,
    validation: Arc<Subset>,
}

/// One part, as one rank uses it.
#[derive(Debug)]
pub struct Share {
    /// Which pictures in which batch.
    pub loader: Loader,
    /// Where its first epoch begins.
    pub start: SamplerState,
    /// Makes the batches.
    pub batches: PictureBatches,
}

impl Data {
    /// Lists the folder and divides it; the same on every rank.
    pub fn open(options: &Options) -> Result<Self> {
        let folder = ImageFolder::open(&options.data)?;
        folder.expect_classes(options.num_classes.get())?;
        let folder: Arc<dyn Pictures> = Arc::new(folder);
        let (training, validation) = split_pictures(&folder, options.held_out, options.seed)?;
        Ok(Self {
            training: Arc::new(training),
            validation: Arc::new(validation),
        })
    }

    /// How many pictures there are to learn from, and to be judged by.
    pub fn counts(&self) -> (usize, usize) {
        (self.training.count(), self.validation.count())
    }

    /// This rank's share of what is learnt from: random parts of pictures, shuffled anew every epoch,
    /// in full batches only.
    ///
    /// # Errors
    /// If the pictures are to have no pixels.
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

    /// This rank's share of what is judged by: the middle of every picture, each picture on one rank.
    ///
    /// # Errors
    /// If the pictures are to have no pixels.
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
