//! Pictures, files and archives for the tests of this folder.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::ImageFormat;
use proptest::prelude::*;

use crate::images::picture::CHANNELS;
use crate::images::{Picture, PictureSize};

/// A picture whose neighbouring pixels differ, and whose pixels tell where they are.
pub(crate) fn pattern(size: PictureSize) -> Picture {
    Picture::from_fn(size, |x, y| {
        [x * 37 + y * 11, x * 5 + y * 71, x ^ y].map(|value| (value % 256) as u8)
    })
}

/// A picture of one colour, which a JPEG keeps nearly as it is.
pub(crate) fn plain(side: usize, colour: [u8; 3]) -> Picture {
    Picture::from_fn(PictureSize::square(side), |_, _| colour)
}

/// Any picture up to some size.
pub(crate) fn any_picture(side_max: usize) -> impl Strategy<Value = Picture> {
    let sides = (1..=side_max, 1..=side_max);
    sides.prop_flat_map(|(width, height)| {
        let size = PictureSize { width, height };
        prop::collection::vec(any::<u8>(), size.pixels() * CHANNELS)
            .prop_map(move |bytes| Picture::new(size, bytes))
    })
}

/// The bytes of a picture's file.
pub(crate) fn encoded(picture: &Picture, format: ImageFormat) -> Vec<u8> {
    let PictureSize { width, height } = picture.size();
    let buffer =
        image::RgbImage::from_raw(width as u32, height as u32, picture.bytes().to_vec()).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    buffer.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Writes a file and the folders above it.
pub(crate) fn write(path: impl AsRef<Path>, bytes: &[u8]) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// The bytes of a tar archive of files.
pub(crate) fn tar_of(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}
