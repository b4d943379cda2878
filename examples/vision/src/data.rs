//! The pictures of a configuration, and their transforms.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use bonfire::World;
use bonfire::data::{
    Cifar10, CifarPart, DummyConfig, DummyPictures, ImageFolder, Normalize, PictureBatches,
    PictureError, PictureSize, Pictures, Prefetch, Transform, TransformError, Transforms,
};

use crate::config::{Augment, Config, Format};

/// Random pictures in each split, as in Distribuuuu.
const DUMMY_COUNT: usize = 1000;

/// Pixels by which a picture of CIFAR may be shifted.
const CIFAR_SHIFT: usize = 4;

#[derive(Debug, Clone)]
pub struct Data {
    pub training: Arc<dyn Pictures>,
    pub test: Arc<dyn Pictures>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The pictures, or the number of their classes, are at fault.
    #[error("{key}")]
    Pictures { key: &'static str, source: PictureError },
    /// A split has no pictures.
    #[error("{key}: {name} has no pictures; give the split that has them")]
    Empty {
        key: &'static str,
        /// The place where they should be.
        name: String,
    },
    /// The classes of the splits have different names, so the same label would mean different things.
    #[error(
        "TEST.SPLIT: class {index} is `{test}`, but `{training}` in TRAIN.SPLIT; give both splits the \
         same class folders"
    )]
    OtherClasses { index: usize, training: String, test: String },
}

impl Data {
    /// Finds the pictures of both splits, and checks them against the configuration. No picture is read yet.
    ///
    /// # Errors
    /// [`DataError`] names the key of the configuration.
    pub fn open(config: &Config) -> Result<Self, DataError> {
        let training = split(config, Split::Training)?;
        let test = split(config, Split::Test)?;
        let pairs = training.classes().iter().zip(test.classes()).enumerate();
        for (index, (training, test)) in pairs {
            if training != test {
                return Err(DataError::OtherClasses {
                    index,
                    training: training.clone(),
                    test: test.clone(),
                });
            }
        }
        Ok(Self { training, test })
    }

    /// Makes the batches of the training split.
    ///
    /// # Errors
    /// If the configuration's sizes fit no picture.
    pub fn training_batches(
        &self,
        config: &Config,
        seed: u64,
        world: &World,
    ) -> Result<PictureBatches, TransformError> {
        let size = config.train.im_size.get();
        let transforms = match config.train.augment {
            Augment::ImageNet => Transforms::training(size)?,
            Augment::Cifar => Transforms::new([
                Transform::RandomCrop { size, padding: CIFAR_SHIFT },
                Transform::RandomHorizontalFlip,
            ])?,
            Augment::None => evaluation(config)?,
        };
        let (source, device) = (Arc::clone(&self.training), world.device().autodiff());
        let normalize = normalize(config);
        Ok(PictureBatches::new(source, transforms, normalize, seed, device))
    }

    /// Makes the batches of the test split.
    ///
    /// # Errors
    /// If the configuration's sizes fit no picture.
    pub fn test_batches(
        &self,
        config: &Config,
        world: &World,
    ) -> Result<PictureBatches, TransformError> {
        let (source, device) = (Arc::clone(&self.test), world.device());
        let (transforms, normalize) = (evaluation(config)?, normalize(config));
        Ok(PictureBatches::new(source, transforms, normalize, 0, device))
    }
}

pub fn prefetch(config: &Config) -> Prefetch {
    Prefetch::default().with_workers(config.train.workers.get())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Training,
    Test,
}

impl Split {
    /// The key of the configuration that leads to its pictures.
    fn key(self) -> &'static str {
        match self {
            Self::Training => "TRAIN.SPLIT",
            Self::Test => "TEST.SPLIT",
        }
    }
}

fn split(config: &Config, split: Split) -> Result<Arc<dyn Pictures>, DataError> {
    let classes = config.model.num_classes;
    if config.model.dummy_input {
        return Ok(dummy(config, split, classes));
    }
    let (dataset, name) = match split {
        Split::Training => (&config.train.dataset, &config.train.split),
        Split::Test => {
            let dataset = config.test.dataset.as_ref();
            (dataset.unwrap_or(&config.train.dataset), &config.test.split)
        }
    };
    let key = split.key();
    let wrong = |source| DataError::Pictures { key, source };
    let pictures = match config.train.format {
        Format::Folder => folder(dataset, name),
        Format::Cifar10 => cifar(dataset, split),
    };
    let pictures = pictures.map_err(wrong)?;
    pictures.expect_classes(classes.get()).map_err(wrong)?;
    if pictures.count() == 0 {
        let name = pictures.name().to_owned();
        return Err(DataError::Empty { key, name });
    }
    Ok(pictures)
}

fn dummy(config: &Config, split: Split, classes: NonZeroUsize) -> Arc<dyn Pictures> {
    Arc::new(DummyPictures::new(DummyConfig {
        count: DUMMY_COUNT,
        classes: classes.get(),
        size: PictureSize::square(config.train.im_size.get()),
        seed: split as u64,
    }))
}

fn folder(dataset: &Path, split: &str) -> Result<Arc<dyn Pictures>, PictureError> {
    Ok(if dataset.is_file() {
        Arc::new(ImageFolder::in_tar(dataset, split)?)
    } else {
        Arc::new(ImageFolder::open(dataset.join(split))?)
    })
}

fn cifar(dataset: &Path, split: Split) -> Result<Arc<dyn Pictures>, PictureError> {
    let part = match split {
        Split::Training => CifarPart::Train,
        Split::Test => CifarPart::Test,
    };
    Ok(Arc::new(Cifar10::open(dataset, part)?))
}

fn evaluation(config: &Config) -> Result<Transforms, TransformError> {
    Transforms::evaluation(config.test.im_size.get(), config.train.im_size.get())
}

/// The figures of the data set for which the augmentation is made.
fn normalize(config: &Config) -> Normalize {
    match config.train.augment {
        Augment::Cifar => Normalize::cifar10(),
        Augment::ImageNet | Augment::None => Normalize::imagenet(),
    }
}
