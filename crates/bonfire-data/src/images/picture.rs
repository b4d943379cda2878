//! A picture in memory.

use std::fmt;
use std::io::Cursor;

use image::{ImageFormat, ImageReader};

use super::{PictureError, jpeg};

pub(super) const CHANNELS: usize = 3;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSize {
    /// The number of pixels in a row.
    pub width: usize,
    /// The number of pixel rows.
    pub height: usize,
}

impl PictureSize {
    /// Returns a square size of `side` × `side` pixels.
    pub const fn square(side: usize) -> Self {
        Self { width: side, height: side }
    }

    /// Returns the number of pixels: `width * height`.
    pub const fn pixels(self) -> usize {
        self.width * self.height
    }
}

impl fmt::Display for PictureSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}

/// A picture of bytes, `[height, width, 3]`: rows from the top, red, green and blue of each pixel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    size: PictureSize,
    bytes: Vec<u8>,
}

impl Picture {
    /// Makes a picture of its bytes.
    ///
    /// # Panics
    /// If it has no pixels, or not three bytes for each.
    pub fn new(size: PictureSize, bytes: Vec<u8>) -> Self {
        assert!(size.pixels() > 0, "a picture of {size} has no pixels");
        assert_eq!(
            bytes.len(),
            size.pixels() * CHANNELS,
            "a picture of {size} has three bytes per pixel"
        );
        Self { size, bytes }
    }

    /// Makes a picture from the colour of each place.
    ///
    /// # Panics
    /// If it has no pixels.
    pub fn from_fn(size: PictureSize, mut colour: impl FnMut(usize, usize) -> [u8; 3]) -> Self {
        let mut bytes = Vec::with_capacity(size.pixels() * CHANNELS);
        for y in 0..size.height {
            for x in 0..size.width {
                bytes.extend(colour(x, y));
            }
        }
        Self::new(size, bytes)
    }

    /// Decodes the bytes of a JPEG or PNG file, whatever the file is called; `name` is for errors. Grey becomes equal
    /// parts of the three colours; transparency and orientation tags are ignored, as Pillow's `convert("RGB")` does.
    ///
    /// # Errors
    /// [`PictureError::Undecodable`] or [`PictureError::Truncated`].
    pub fn decode(encoded: &[u8], name: &str) -> Result<Self, PictureError> {
        let undecodable =
            |cause: String| PictureError::Undecodable { name: name.to_owned(), cause };
        let reader = ImageReader::new(Cursor::new(encoded))
            .with_guessed_format()
            .map_err(|error| undecodable(error.to_string()))?;
        let Some(format) = reader.format() else {
            return Err(undecodable("neither JPEG nor PNG".to_owned()));
        };
        // The decoder paints missing parts of a JPEG grey, without an error.
        if format == ImageFormat::Jpeg && !jpeg::is_complete(encoded) {
            return Err(PictureError::Truncated { name: name.to_owned(), bytes: encoded.len() });
        }
        let decoded = reader.decode().map_err(|error| undecodable(one_line(&error.to_string())))?;
        let picture = decoded.into_rgb8();
        let size =
            PictureSize { width: picture.width() as usize, height: picture.height() as usize };
        if size.pixels() == 0 {
            return Err(undecodable(format!("it is {size}")));
        }
        Ok(Self::new(size, picture.into_raw()))
    }

    /// Returns width and height in pixels.
    pub fn size(&self) -> PictureSize {
        self.size
    }

    /// Returns the bytes, `[height, width, 3]`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns red, green and blue at a place.
    ///
    /// # Panics
    /// If the place is outside.
    pub fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        let PictureSize { width, height } = self.size;
        assert!(x < width && y < height, "({x}, {y}) is outside of {}", self.size);
        let start = (y * width + x) * CHANNELS;
        [self.bytes[start], self.bytes[start + 1], self.bytes[start + 2]]
    }

    pub(super) fn row(&self, y: usize) -> &[u8] {
        let len = self.size.width * CHANNELS;
        &self.bytes[y * len..(y + 1) * len]
    }

    /// The part of `size` whose upper left corner is at (`left`, `top`); what of it lies outside is black.
    pub(super) fn window(&self, corner: Corner, size: PictureSize) -> Self {
        if corner == (Corner { left: 0, top: 0 }) && size == self.size {
            return self.clone();
        }
        let mut bytes = vec![0; size.pixels() * CHANNELS];
        let columns = overlap(corner.left, size.width, self.size.width);
        let rows = overlap(corner.top, size.height, self.size.height);
        for (source, target) in rows.pairs() {
            let row = &self.row(source)[columns.source * CHANNELS..][..columns.len * CHANNELS];
            let start = (target * size.width + columns.target) * CHANNELS;
            bytes[start..start + row.len()].copy_from_slice(row);
        }
        Self::new(size, bytes)
    }

    pub(super) fn mirrored(mut self) -> Self {
        for row in self.bytes.chunks_exact_mut(self.size.width * CHANNELS) {
            let (pixels, _) = row.as_chunks_mut::<CHANNELS>();
            pixels.reverse();
        }
        self
    }
}

/// The corner of a window; negative if it is before the picture's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corner {
    pub(super) left: isize,
    pub(super) top: isize,
}

/// The range that a window and a picture share, in one direction.
struct Overlap {
    source: usize,
    target: usize,
    len: usize,
}

impl Overlap {
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let (source, target) = (self.source, self.target);
        (0..self.len).map(move |step| (source + step, target + step))
    }
}

fn overlap(start: isize, window: usize, picture: usize) -> Overlap {
    let (source, target) = (start.max(0).unsigned_abs(), (-start).max(0).unsigned_abs());
    let len = window.saturating_sub(target).min(picture.saturating_sub(source));
    match len {
        // Nothing is shared, so the starts may lie outside of either.
        0 => Overlap { source: 0, target: 0, len },
        len => Overlap { source, target, len },
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
