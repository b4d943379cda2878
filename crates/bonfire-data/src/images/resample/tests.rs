//! Against the definition in 64 bits, and against values worked out by hand.

use proptest::prelude::*;

use super::*;
use crate::images::fixtures::{any_picture, pattern};

/// How much each source place counts for a target place: a triangle around the target's middle.
fn exact_weights(source: usize, target: usize, place: usize) -> Vec<f64> {
    let scale = source as f64 / target as f64;
    let half_width = scale.max(1.0);
    let middle = (place as f64 + 0.5) * scale;
    let weight = |at: usize| {
        let distance = (at as f64 + 0.5 - middle).abs() / half_width;
        (1.0 - distance).max(0.0)
    };
    let weights: Vec<f64> = (0..source).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// A target pixel, in both directions at once and without any rounding.
fn exact_pixel(picture: &Picture, size: PictureSize, x: usize, y: usize) -> [f64; 3] {
    let source = picture.size();
    let columns = exact_weights(source.width, size.width, x);
    let rows = exact_weights(source.height, size.height, y);
    let mut pixel = [0.0; 3];
    for (source_y, row) in rows.iter().enumerate() {
        for (source_x, column) in columns.iter().enumerate() {
            let bytes = picture.pixel(source_x, source_y);
            for (sum, byte) in pixel.iter_mut().zip(bytes) {
                *sum += row * column * f64::from(byte);
            }
        }
    }
    pixel
}

proptest! {
    #[test]
    fn every_pixel_is_the_triangle_mean_of_its_surroundings(
        picture in any_picture(24), width in 1_usize..30, height in 1_usize..30,
    ) {
        let size = PictureSize { width, height };
        let found = resized(picture.clone(), size);
        prop_assert_eq!(found.size(), size);
        // Half a step for the rounding of each direction, and half a step of the fixed point for
        // each of at most 24 weights in each direction.
        let weights = 2.0 * 24.0 * 255.0 / f64::from(1_u32 << (WEIGHT_BITS + 1));
        let tolerance = 0.5 + 0.5 + weights;
        for y in 0..height {
            for x in 0..width {
                let expected = exact_pixel(&picture, size, x, y);
                for (byte, exact) in found.pixel(x, y).into_iter().zip(expected) {
                    prop_assert!(
                        (f64::from(byte) - exact).abs() <= tolerance,
                        "({x}, {y}) is {byte} and should be {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_plain_picture_stays_plain(colour in any::<[u8; 3]>(), side in 1_usize..40, to in 1_usize..40) {
        let picture = Picture::from_fn(PictureSize::square(side), |_, _| colour);
        let small = resized(picture, PictureSize::square(to));
        prop_assert_eq!(small, Picture::from_fn(PictureSize::square(to), |_, _| colour));
    }
}

/// A row of grey, resized to a width.
fn row(values: &[u8], width: usize) -> Vec<u8> {
    let size = PictureSize { width: values.len(), height: 1 };
    let picture = Picture::from_fn(size, |x, _| [values[x]; 3]);
    let resized = resized(picture, PictureSize { width, height: 1 });
    (0..width).map(|x| resized.pixel(x, 0)[0]).collect()
}

#[test]
fn worked_examples_come_out_to_the_byte() {
    // Between two pixels at quarters of the way.
    assert_eq!(row(&[0, 255], 4), [0, 64, 191, 255]);
    // (3 × 0 + 3 × 100 + 200) / 7 and (100 + 3 × 200 + 3 × 40) / 7.
    assert_eq!(row(&[0, 100, 200, 40], 2), [71, 117]);
    // Everything counts: without averaging, the single bright pixel would vanish.
    assert!(row(&[0, 0, 0, 0, 255, 0, 0, 0, 0], 3)[1] > 50);
}

/// FNV-1a of what Pillow 13.0.0 makes of the same pattern:
/// `Image.frombytes("RGB", source, pattern).resize(target, Image.BILINEAR).tobytes()`.
#[test]
fn pillow_makes_the_same_bytes() {
    let cases = [
        ((60, 50), (24, 24), 0xb150_f643_738f_2459),
        ((21, 13), (40, 31), 0x0090_b38d_78ec_3a7e),
        ((100, 7), (9, 30), 0xf46d_c04e_83dc_c6a1),
        ((64, 64), (64, 17), 0x4546_eae7_7f2d_03cb),
        ((500, 375), (224, 224), 0xfc1e_3697_2eb7_b12f),
    ];
    for (source, target, expected) in cases {
        let size = |(width, height)| PictureSize { width, height };
        let resized = resized(pattern(size(source)), size(target));
        let hash = resized.bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, expected, "{source:?} to {target:?}: {hash:#x}");
    }
}
