//! Transforms of pictures before a model gets them.

use chacha20::ChaCha8Rng;
use rand::SeedableRng;

use super::picture::Corner;
use super::resample::resized;
use super::{Picture, PictureSize, TransformError};
use crate::random::{below, unit};

/// One transform of a picture, with torchvision's meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Transform {
    /// A square of `size` from a random place, after adding `padding` black pixels on each side.
    RandomCrop {
        /// The side of the square in pixels.
        size: usize,
        /// Black pixels added on each side.
        padding: usize,
    },
    /// Left and right exchanged, in every second picture on average.
    RandomHorizontalFlip,
    /// A random part of a random form, resized to a square of `size`. With `(0.08, 1.0)` and `(3.0 / 4.0, 4.0 / 3.0)`
    /// this is what ImageNet is usually trained with; see [`Transform::random_resized_crop`].
    RandomResizedCrop {
        /// The side of the result in pixels.
        size: usize,
        /// The least and the largest share of the picture's area, drawn uniformly.
        scale: (f64, f64),
        /// The least and the largest ratio of width to height, drawn uniformly by its logarithm.
        ratio: (f64, f64),
    },
    /// Resized so that the shorter side has `shorter` pixels. Bilinear, averaging over all pixels
    /// where the picture gets smaller.
    Resize {
        /// The shorter side of the result, in pixels.
        shorter: usize,
    },
    /// A square of `size` from the middle; what a smaller picture lacks is black.
    CenterCrop {
        /// The side of the result in pixels.
        size: usize,
    },
}

/// Identifies a picture of an epoch: all that random transforms depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSample {
    /// The seed, the same on every rank.
    pub seed: u64,
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The picture's index in the data set.
    pub index: usize,
}

/// Transforms that are applied one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transforms {
    steps: Vec<Transform>,
}

/// Attempts to draw a random part that fits, as in torchvision.
const ATTEMPTS: usize = 10;

impl Transform {
    /// Returns the random part with the usual bounds: 8% to 100% of the area, 3:4 to 4:3.
    pub const fn random_resized_crop(size: usize) -> Self {
        Self::RandomResizedCrop { size, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
    }

    fn is_sensible(&self) -> bool {
        match *self {
            Self::RandomCrop { size, .. } | Self::CenterCrop { size } => size > 0,
            Self::Resize { shorter } => shorter > 0,
            Self::RandomHorizontalFlip => true,
            Self::RandomResizedCrop { size, scale, ratio } => {
                let ordered = |(least, most): (f64, f64)| 0.0 < least && least <= most;
                let bounded = scale.1 <= 1.0 && ratio.1.is_finite();
                size > 0 && ordered(scale) && ordered(ratio) && bounded
            }
        }
    }

    fn apply(&self, picture: Picture, rng: &mut ChaCha8Rng) -> Result<Picture, TransformError> {
        Ok(match *self {
            Self::RandomCrop { size, padding } => random_crop(&picture, size, padding, rng)?,
            Self::RandomHorizontalFlip if unit(rng) < 0.5 => picture.mirrored(),
            Self::RandomHorizontalFlip => picture,
            Self::RandomResizedCrop { size, scale, ratio } => {
                let (corner, part) = random_part(picture.size(), scale, ratio, rng);
                resized(picture.window(corner, part), PictureSize::square(size))
            }
            Self::Resize { shorter } => {
                let size = with_shorter_side(picture.size(), shorter);
                resized(picture, size)
            }
            Self::CenterCrop { size } => center_crop(&picture, size),
        })
    }
}

impl Transforms {
    /// Takes the transforms in their order.
    ///
    /// # Errors
    /// [`TransformError::Senseless`] names the first that fits no picture: a size of 0, or bounds that
    /// are not in order.
    pub fn new(steps: impl Into<Vec<Transform>>) -> Result<Self, TransformError> {
        let steps = steps.into();
        match steps.iter().find(|step| !step.is_sensible()) {
            Some(&transform) => Err(TransformError::Senseless { transform }),
            None => Ok(Self { steps }),
        }
    }

    /// Returns the usual transforms for training on ImageNet: a random part of 8% to 100%, flipped or not.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn training(size: usize) -> Result<Self, TransformError> {
        Self::new([Transform::random_resized_crop(size), Transform::RandomHorizontalFlip])
    }

    /// Returns the usual transforms for evaluation: resized, then the middle. `(256, 224)` for ImageNet.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn evaluation(shorter: usize, size: usize) -> Result<Self, TransformError> {
        Self::new([Transform::Resize { shorter }, Transform::CenterCrop { size }])
    }

    /// Transforms a picture. The same sample gives the same result wherever and whenever it is applied.
    ///
    /// # Errors
    /// [`TransformError`].
    pub fn apply(
        &self,
        picture: Picture,
        sample: PictureSample,
    ) -> Result<Picture, TransformError> {
        let mut rng = generator(sample);
        let mut picture = picture;
        for step in &self.steps {
            picture = step.apply(picture, &mut rng)?;
        }
        Ok(picture)
    }
}

/// Random numbers of one sample: each has its own key, so that none are shared.
fn generator(sample: PictureSample) -> ChaCha8Rng {
    let PictureSample { seed, epoch, index } = sample;
    let words = [seed, epoch, index as u64, u64::from_le_bytes(*b"pictures")];
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

fn random_crop(
    picture: &Picture,
    size: usize,
    padding: usize,
    rng: &mut ChaCha8Rng,
) -> Result<Picture, TransformError> {
    let PictureSize { width, height } = picture.size();
    let padded = PictureSize { width: width + 2 * padding, height: height + 2 * padding };
    if padded.width < size || padded.height < size {
        return Err(TransformError::TooSmall { size, found: padded });
    }
    let mut place = |side: usize| signed(draw(rng, side - size)) - signed(padding);
    let top = place(padded.height);
    let left = place(padded.width);
    Ok(picture.window(Corner { left, top }, PictureSize::square(size)))
}

/// Corner and size of a random part: torchvision's `RandomResizedCrop.get_params`.
fn random_part(
    whole: PictureSize,
    scale: (f64, f64),
    ratio: (f64, f64),
    rng: &mut ChaCha8Rng,
) -> (Corner, PictureSize) {
    let (logarithm_least, logarithm_most) = (ratio.0.ln(), ratio.1.ln());
    for _ in 0..ATTEMPTS {
        let area = whole.pixels() as f64 * between(rng, scale.0, scale.1);
        let form = between(rng, logarithm_least, logarithm_most).exp();
        let part = PictureSize {
            width: (area * form).sqrt().round_ties_even() as usize,
            height: (area / form).sqrt().round_ties_even() as usize,
        };
        if part.pixels() > 0 && part.width <= whole.width && part.height <= whole.height {
            let top = signed(draw(rng, whole.height - part.height));
            let left = signed(draw(rng, whole.width - part.width));
            return (Corner { left, top }, part);
        }
    }
    middle_part(whole, ratio)
}

/// The largest part from the middle whose form is within the bounds.
fn middle_part(whole: PictureSize, ratio: (f64, f64)) -> (Corner, PictureSize) {
    let PictureSize { width, height } = whole;
    let form = width as f64 / height as f64;
    // At least one pixel, also of a picture that is a line.
    let rounded = |side: f64| (side.round_ties_even() as usize).max(1);
    let mut part = whole;
    if form < ratio.0 {
        part.height = rounded(width as f64 / ratio.0).min(height);
    } else if form > ratio.1 {
        part.width = rounded(height as f64 * ratio.1).min(width);
    }
    let corner =
        Corner { left: signed((width - part.width) / 2), top: signed((height - part.height) / 2) };
    (corner, part)
}

/// The size with a given shorter side and, but for the cut to whole pixels, the same form.
fn with_shorter_side(size: PictureSize, shorter: usize) -> PictureSize {
    let longer = |long: usize, short: usize| shorter * long / short;
    let (width, height) = if size.width <= size.height {
        (shorter, longer(size.height, size.width))
    } else {
        (longer(size.width, size.height), shorter)
    };
    PictureSize { width, height }
}

fn center_crop(picture: &Picture, size: usize) -> Picture {
    let PictureSize { width, height } = picture.size();
    // Black is added on the left and above as torchvision does: the smaller half there.
    let place = |side: usize| {
        if side < size {
            -signed((size - side) / 2)
        } else {
            ((side - size) as f64 / 2.0).round_ties_even() as isize
        }
    };
    let corner = Corner { left: place(width), top: place(height) };
    picture.window(corner, PictureSize::square(size))
}

/// A uniform number from 0 to `most`, inclusive.
fn draw(rng: &mut ChaCha8Rng, most: usize) -> usize {
    below(rng, most as u64 + 1) as usize
}

fn between(rng: &mut ChaCha8Rng, least: f64, most: f64) -> f64 {
    least + unit(rng) * (most - least)
}

fn signed(pixels: usize) -> isize {
    isize::try_from(pixels).expect("a picture in memory has fewer pixels")
}

#[cfg(test)]
mod tests;
