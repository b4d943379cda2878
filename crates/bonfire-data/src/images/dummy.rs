//! Pictures of noise, for measuring without a data set.

use chacha20::ChaCha8Rng;
use rand::{Rng, SeedableRng};

use super::picture::CHANNELS;
use super::{Picture, PictureError, PictureSize, Pictures};

/// Pictures of noise, made on demand; each depends on the seed and its index only.
#[derive(Debug)]
pub struct DummyPictures {
    classes: Vec<String>,
    labels: Vec<usize>,
    size: PictureSize,
    seed: u64,
}

/// Options of [`DummyPictures`]: count, classes, size and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DummyConfig {
    /// The number of pictures in the source.
    pub count: usize,
    /// The number of classes, which follow each other in turn.
    pub classes: usize,
    /// The size of every picture.
    pub size: PictureSize,
    /// The seed of the noise.
    pub seed: u64,
}

impl DummyPictures {
    /// Makes pictures of noise as `config` says.
    ///
    /// # Panics
    /// If there are no classes, or the pictures have no pixels.
    pub fn new(config: DummyConfig) -> Self {
        let DummyConfig { count, classes, size, seed } = config;
        assert!(classes > 0, "pictures of {classes} classes have no labels");
        assert!(size.pixels() > 0, "a picture of {size} has no pixels");
        Self {
            classes: (0..classes).map(|class| format!("dummy {class}")).collect(),
            labels: (0..count).map(|index| index % classes).collect(),
            size,
            seed,
        }
    }
}

impl Pictures for DummyPictures {
    fn name(&self) -> &str {
        "dummy pictures"
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn picture(&self, index: usize) -> Result<Picture, PictureError> {
        assert!(index < self.labels.len(), "picture {index} of {}", self.labels.len());
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(index as u64);
        let mut bytes = vec![0; self.size.pixels() * CHANNELS];
        rng.fill_bytes(&mut bytes);
        Ok(Picture::new(self.size, bytes))
    }
}
