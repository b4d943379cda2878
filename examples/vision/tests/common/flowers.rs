//! Folders of pictures that the tests draw, and damage. Also for the tests of other programs.

#![allow(clippy::unwrap_used, dead_code)] // helpers of tests, not each used by every test

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};

const CLASSES: [(&str, [u8; 3]); 3] =
    [("daisies", [220, 220, 210]), ("roses", [200, 20, 40]), ("violets", [60, 30, 200])];

/// So many JPEG files of each of three colours, uneven in size and brightness, in a folder for each.
pub(crate) fn draw(folder: &Path, of_each: u32) {
    for (class, colour) in CLASSES {
        fs::create_dir_all(folder.join(class)).unwrap();
        for index in 0..of_each {
            let picture = RgbImage::from_fn(36 + index, 48 - index, |x, y| {
                let shade = (x * 7 + y * 13 + index * 5) % 40;
                Rgb(colour.map(|channel: u8| channel.saturating_sub(shade as u8)))
            });
            let path = folder.join(class).join(format!("{index:03}.jpg"));
            picture.save(path).unwrap();
        }
    }
}

/// Takes the second half of a file away.
pub(crate) fn cut(file: &Path) {
    let bytes = fs::read(file).unwrap();
    // In one step, for a program that reads it meanwhile.
    let half = file.with_extension("half");
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    fs::rename(&half, file).unwrap();
}
