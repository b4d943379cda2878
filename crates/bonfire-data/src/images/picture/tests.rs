//! Windows, mirrors, and files that are whole, cut or something else.

use proptest::prelude::*;

use super::*;
use crate::images::fixtures::{any_picture, encoded, pattern, plain};

const SIZE: PictureSize = PictureSize { width: 21, height: 13 };

#[test]
fn a_png_comes_back_as_it_was() {
    let picture = pattern(SIZE);
    let file = encoded(&picture, ImageFormat::Png);
    assert_eq!(Picture::decode(&file, "a.png").unwrap(), picture);
}

#[test]
fn a_jpeg_is_decoded_whatever_it_is_called() {
    let file = encoded(&plain(16, [200, 40, 90]), ImageFormat::Jpeg);
    let picture = Picture::decode(&file, "a.png").unwrap();
    assert_eq!(picture.size(), PictureSize::square(16));
    for (found, expected) in picture.pixel(7, 9).into_iter().zip([200_u8, 40, 90]) {
        // A plain picture loses only to the rounding of colours and of one coefficient.
        assert!(found.abs_diff(expected) <= 4, "{:?}", picture.pixel(7, 9));
    }
}

#[test]
fn grey_and_transparent_pictures_become_three_colours() {
    let mut file = Cursor::new(Vec::new());
    let grey = image::GrayImage::from_fn(5, 4, |x, y| image::Luma([(x * 40 + y) as u8]));
    grey.write_to(&mut file, ImageFormat::Png).unwrap();
    let picture = Picture::decode(file.get_ref(), "grey.png").unwrap();
    assert_eq!(picture.pixel(3, 2), [122; 3]);

    let mut file = Cursor::new(Vec::new());
    let clear = image::RgbaImage::from_pixel(2, 2, image::Rgba([9, 8, 7, 0]));
    clear.write_to(&mut file, ImageFormat::Png).unwrap();
    let picture = Picture::decode(file.get_ref(), "clear.png").unwrap();
    assert_eq!(picture.pixel(1, 1), [9, 8, 7]);
}

/// A JPEG with another one in front of it, as cameras put thumbnails.
fn with_thumbnail(file: &[u8]) -> Vec<u8> {
    let thumbnail = encoded(&plain(8, [1, 2, 3]), ImageFormat::Jpeg);
    let length = u16::try_from(thumbnail.len() + 2).unwrap().to_be_bytes();
    [&file[..2], &[0xFF, 0xE1], &length[..], &thumbnail[..], &file[2..]].concat()
}

#[test]
fn a_jpeg_is_complete_only_as_a_whole() {
    let plain = encoded(&pattern(SIZE), ImageFormat::Jpeg);
    for file in [with_thumbnail(&plain), plain] {
        assert!(jpeg::is_complete(&file));
        for len in 0..file.len() {
            assert!(!jpeg::is_complete(&file[..len]), "{len} of {} bytes", file.len());
        }
        assert!(Picture::decode(&file, "whole").is_ok());
        let cut = file.len() - 40;
        let error = Picture::decode(&file[..cut], "roses/7.jpg").unwrap_err();
        assert!(
            matches!(&error, PictureError::Truncated { bytes, .. } if *bytes == cut),
            "{error}"
        );
        assert!(
            error.to_string().starts_with(&format!("roses/7.jpg ends after {cut} bytes")),
            "{error}"
        );
    }
}

#[test]
fn damaged_and_foreign_files_are_named_in_one_line() {
    let png = encoded(&pattern(SIZE), ImageFormat::Png);
    let mut flipped = png.clone();
    flipped[png.len() / 2] ^= 0x55;
    let jpeg = encoded(&pattern(SIZE), ImageFormat::Jpeg);
    let mut headless = jpeg.clone();
    // Where the first table begins, a segment that says it is a frame.
    headless[3] = 0xC0;
    for file in [&b""[..], b"GIF89a and more", b"hello", &png[..png.len() / 2], &flipped, &headless]
    {
        let error = Picture::decode(file, "roses/7.jpg").unwrap_err();
        assert!(matches!(error, PictureError::Undecodable { .. }), "{error:?}");
        let line = error.to_string();
        assert!(line.starts_with("roses/7.jpg is not a picture") && !line.contains('\n'), "{line}");
    }
}

proptest! {
    #[test]
    fn a_window_shows_the_picture_or_black(
        picture in any_picture(9), left in -12_isize..12, top in -12_isize..12,
        width in 1_usize..12, height in 1_usize..12,
    ) {
        let size = PictureSize { width, height };
        let window = picture.window(Corner { left, top }, size);
        prop_assert_eq!(window.size(), size);
        for y in 0..height {
            for x in 0..width {
                let source = (left + x as isize, top + y as isize);
                let inside = (0..picture.size().width as isize).contains(&source.0)
                    && (0..picture.size().height as isize).contains(&source.1);
                let expected = if inside {
                    picture.pixel(source.0 as usize, source.1 as usize)
                } else {
                    [0; 3]
                };
                prop_assert_eq!(window.pixel(x, y), expected);
            }
        }
    }

    #[test]
    fn a_mirror_exchanges_left_and_right(picture in any_picture(9)) {
        let PictureSize { width, height } = picture.size();
        let mirrored = picture.clone().mirrored();
        for y in 0..height {
            for x in 0..width {
                prop_assert_eq!(mirrored.pixel(x, y), picture.pixel(width - 1 - x, y));
            }
        }
        prop_assert_eq!(mirrored.mirrored(), picture);
    }
}
