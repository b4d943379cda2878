//! From bytes to the numbers that a model was made for.

use super::picture::CHANNELS;

/// Brings bytes to 0..=1, subtracts a mean and divides by a deviation, for each colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// The normalized value of each byte, for each colour.
    values: [[f32; 256]; CHANNELS],
}

impl Normalize {
    /// Sets a mean and a standard deviation for red, green and blue.
    ///
    /// # Panics
    /// If a deviation is not above 0.
    pub fn new(mean: [f32; 3], deviation: [f32; 3]) -> Self {
        for (mean, deviation) in mean.into_iter().zip(deviation) {
            assert!(
                deviation > 0.0 && deviation.is_finite() && mean.is_finite(),
                "cannot normalize with a mean of {mean} and a deviation of {deviation}"
            );
        }
        let value = |channel: usize, byte: usize| {
            (byte as f32 / 255.0 - mean[channel]) / deviation[channel]
        };
        Self {
            values: std::array::from_fn(|channel| std::array::from_fn(|byte| value(channel, byte))),
        }
    }

    /// Returns the usual figures of CIFAR-10's training pictures.
    pub fn cifar10() -> Self {
        Self::new([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
    }

    /// Returns the figures of ImageNet that pretrained models expect.
    pub fn imagenet() -> Self {
        Self::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    }

    pub(super) fn append_planes(&self, bytes: &[u8], planes: &mut Vec<f32>) {
        let (pixels, rest) = bytes.as_chunks::<CHANNELS>();
        assert!(rest.is_empty(), "{} bytes are not a pixel", rest.len());
        for (channel, values) in self.values.iter().enumerate() {
            planes.extend(pixels.iter().map(|pixel| values[usize::from(pixel[channel])]));
        }
    }
}
