//! Bilinear resizing that averages over all pixels it passes when it makes a picture smaller.
//!
//! Pillow's method (`src/libImaging/Resample.c`), with its fixed-point weights and its rounding to
//! bytes between the two directions, so that the pictures are those that torchvision's default makes.

use super::picture::CHANNELS;
use super::{Picture, PictureSize};

/// Bits behind the point of a weight: 32, less 8 for a byte and 2 to stay clear of the sign.
const WEIGHT_BITS: u32 = 32 - 8 - 2;

pub(super) fn resized(picture: Picture, size: PictureSize) -> Picture {
    let picture = if size.width == picture.size().width {
        picture
    } else {
        horizontally(&picture, size.width)
    };
    if size.height == picture.size().height { picture } else { vertically(&picture, size.height) }
}

fn horizontally(picture: &Picture, width: usize) -> Picture {
    let source = picture.size();
    let taps = Taps::new(source.width, width);
    let size = PictureSize { width, ..source };
    let mut bytes = Vec::with_capacity(size.pixels() * CHANNELS);
    for y in 0..size.height {
        let (row, _) = picture.row(y).as_chunks::<CHANNELS>();
        for (first, weights) in taps.iter() {
            let mut sums = [HALF; CHANNELS];
            for (pixel, &weight) in row[first..].iter().zip(weights) {
                for (sum, &byte) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(byte);
                }
            }
            bytes.extend(sums.map(rounded));
        }
    }
    Picture::new(size, bytes)
}

fn vertically(picture: &Picture, height: usize) -> Picture {
    let source = picture.size();
    let taps = Taps::new(source.height, height);
    let size = PictureSize { height, ..source };
    let mut bytes = Vec::with_capacity(size.pixels() * CHANNELS);
    let mut sums = vec![HALF; size.width * CHANNELS];
    for (first, weights) in taps.iter() {
        sums.fill(HALF);
        for (y, &weight) in (first..).zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(picture.row(y)) {
                *sum += weight * i32::from(byte);
            }
        }
        bytes.extend(sums.iter().map(|&sum| rounded(sum)));
    }
    Picture::new(size, bytes)
}

/// Added before the shift in [`rounded`], so that it rounds.
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

fn rounded(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Which source places make up each target place, in one direction.
struct Taps {
    /// The first source place and the number of places, for each target place.
    spans: Vec<(usize, usize)>,
    weights: Vec<i32>,
}

impl Taps {
    fn new(source: usize, target: usize) -> Self {
        assert!(source > 0 && target > 0, "{source} places cannot become {target}");
        let scale = source as f64 / target as f64;
        // The triangle covers all that one target place stands for, and at least its neighbours.
        let support = scale.max(1.0);
        let mut taps = Self { spans: Vec::with_capacity(target), weights: Vec::new() };
        for place in 0..target {
            let centre = (place as f64 + 0.5) * scale;
            // The casts cut towards zero and end at it.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(source);
            let weight = |tap: usize| {
                let distance = (tap as f64 - centre + 0.5) / support;
                (1.0 - distance.abs()).max(0.0)
            };
            let sum: f64 = (first..end).map(weight).sum();
            let one = f64::from(1_u32 << WEIGHT_BITS);
            let fixed = |tap| (weight(tap) / sum * one + 0.5) as i32;
            taps.weights.extend((first..end).map(fixed));
            taps.spans.push((first, end - first));
        }
        taps
    }

    /// The first source place and the weights of each target place.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut rest = &self.weights[..];
        self.spans.iter().map(move |&(first, len)| {
            let (weights, others) = rest.split_at(len);
            rest = others;
            (first, weights)
        })
    }
}

#[cfg(test)]
mod tests;
