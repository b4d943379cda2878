//! The bounds of chance, its independence, and torchvision's formulas.

use proptest::prelude::*;

use super::*;
use crate::images::fixtures::{any_picture, pattern};

fn sample(epoch: u64, index: usize) -> PictureSample {
    PictureSample { seed: 11, epoch, index }
}

const SCALE: (f64, f64) = (0.08, 1.0);
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

proptest! {
    #[test]
    fn a_random_part_has_an_area_and_a_form_within_the_bounds(
        width in 1_usize..500, height in 1_usize..500, seed in any::<u64>(),
    ) {
        let whole = PictureSize { width, height };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (corner, part) = random_part(whole, SCALE, RATIO, &mut rng);
        prop_assert!(corner.left >= 0 && corner.left as usize + part.width <= width);
        prop_assert!(corner.top >= 0 && corner.top as usize + part.height <= height);
        prop_assert!(part.pixels() > 0);
        // Rounding moves each side by half a pixel at most.
        let (w, h) = (part.width as f64, part.height as f64);
        let fits = (w + 0.5) / (h - 0.5) >= RATIO.0 && (w - 0.5) / (h + 0.5) <= RATIO.1;
        prop_assert!(fits || w * h <= 1.0, "{part} of {whole}");
        let least = SCALE.0 * whole.pixels() as f64;
        let is_middle = (corner, part) == middle_part(whole, RATIO);
        prop_assert!((w + 0.5) * (h + 0.5) >= least || is_middle, "{part} of {whole}");
    }

    #[test]
    fn the_result_has_the_size_asked_for(picture in any_picture(40), size in 1_usize..48) {
        let square = PictureSize::square(size);
        let of = |step| Transforms::new([step]).unwrap().apply(picture.clone(), sample(0, 0)).unwrap();
        prop_assert_eq!(of(Transform::random_resized_crop(size)).size(), square);
        prop_assert_eq!(of(Transform::CenterCrop { size }).size(), square);
        prop_assert_eq!(of(Transform::RandomCrop { size, padding: 24 }).size(), square);
        let found = of(Transform::Resize { shorter: size }).size();
        let PictureSize { width, height } = picture.size();
        prop_assert_eq!(found.width.min(found.height), size);
        prop_assert_eq!(found.width.max(found.height), size * width.max(height) / width.min(height));
    }
}

#[test]
fn the_same_sample_is_changed_in_the_same_way_and_others_are_not() {
    let transforms = Transforms::training(24).unwrap();
    let picture = pattern(PictureSize { width: 60, height: 50 });
    let changed = |epoch, index| transforms.apply(picture.clone(), sample(epoch, index)).unwrap();
    let mut seen: Vec<Picture> = Vec::new();
    for (epoch, index) in [(0, 0), (0, 1), (1, 0), (1, 1), (1 << 40, 0)] {
        let result = changed(epoch, index);
        assert_eq!(result, changed(epoch, index));
        assert!(!seen.contains(&result), "epoch {epoch}, picture {index}");
        seen.push(result);
    }
    let other_seed = PictureSample { seed: 12, ..sample(0, 0) };
    assert_ne!(transforms.apply(picture, other_seed).unwrap(), seen[0]);
}

#[test]
fn a_random_crop_comes_from_every_place_equally_often() {
    const PADDING: usize = 2;
    const SIDE: usize = 6;
    const DRAWS: usize = 20_000;
    // No two windows look alike: every pixel is of another colour, and none is black.
    let picture =
        Picture::from_fn(PictureSize::square(SIDE), |x, y| [1 + (y * SIDE + x) as u8, 1, 1]);
    let crop = Transforms::new([Transform::RandomCrop { size: SIDE, padding: PADDING }]).unwrap();
    const PLACES: usize = 2 * PADDING + 1;
    let mut counts = [0_usize; PLACES * PLACES];
    for index in 0..DRAWS {
        let found = crop.apply(picture.clone(), sample(0, index)).unwrap();
        let place = (0..PLACES * PLACES)
            .find(|place| {
                let corner = Corner {
                    left: signed(place % PLACES) - signed(PADDING),
                    top: signed(place / PLACES) - signed(PADDING),
                };
                found == picture.window(corner, PictureSize::square(SIDE))
            })
            .expect("a crop is a window");
        counts[place] += 1;
    }
    let expected = DRAWS as f64 / counts.len() as f64;
    // Six standard deviations of a binomial count.
    let tolerance = 6.0 * expected.sqrt();
    for (place, &count) in counts.iter().enumerate() {
        let off = (count as f64 - expected).abs();
        assert!(off <= tolerance, "place {place}: {count} of {expected}");
    }
}

#[test]
fn every_second_picture_is_mirrored() {
    const DRAWS: usize = 10_000;
    let picture = pattern(PictureSize { width: 3, height: 1 });
    let flip = Transforms::new([Transform::RandomHorizontalFlip]).unwrap();
    let mirrored = (0..DRAWS)
        .filter(|&index| flip.apply(picture.clone(), sample(3, index)).unwrap() != picture)
        .count();
    let off = (mirrored as f64 - DRAWS as f64 / 2.0).abs();
    assert!(off <= 6.0 * (DRAWS as f64 / 4.0).sqrt(), "{mirrored}");
}

#[test]
fn a_crop_of_its_own_size_keeps_the_picture() {
    let picture = pattern(PictureSize::square(32));
    for step in [
        Transform::RandomCrop { size: 32, padding: 0 },
        Transform::CenterCrop { size: 32 },
        Transform::Resize { shorter: 32 },
    ] {
        let found = Transforms::new([step]).unwrap().apply(picture.clone(), sample(0, 0));
        assert_eq!(found.unwrap(), picture, "{step:?}");
    }
}

#[test]
fn the_middle_is_where_torchvision_finds_it() {
    // round((7 - 4) / 2) is 2 and round((5 - 4) / 2) is 0: halves go to the even number.
    let picture = pattern(PictureSize { width: 7, height: 5 });
    let found = center_crop(&picture, 4);
    assert_eq!(found.pixel(0, 0), picture.pixel(2, 0));
    // Of three missing columns one is added on the left.
    let found = center_crop(&picture, 10);
    assert_eq!(found.pixel(1, 2), picture.pixel(0, 0));
    assert_eq!(found.pixel(0, 2), [0; 3]);
    assert_eq!(found.pixel(8, 2), [0; 3]);
}

#[test]
fn a_line_falls_back_to_its_middle() {
    let line = PictureSize { width: 1, height: 1000 };
    let (corner, part) = middle_part(line, RATIO);
    assert_eq!((corner.left, corner.top, part), (0, 499, PictureSize::square(1)));
    let wide = PictureSize { width: 300, height: 30 };
    let (corner, part) = middle_part(wide, RATIO);
    assert_eq!((corner.left, part.width, part.height), (130, 40, 30));
}

#[test]
fn a_crop_without_room_says_what_it_found() {
    let crop = Transforms::new([Transform::RandomCrop { size: 32, padding: 4 }]).unwrap();
    let small = pattern(PictureSize { width: 40, height: 20 });
    let error = crop.apply(small, sample(0, 0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a crop of 32 x 32 does not fit into 48 x 28; resize first, or pad more"
    );
}

#[test]
fn transforms_that_fit_no_picture_are_errors() {
    let upside_down =
        Transform::RandomResizedCrop { size: 8, scale: (0.9, 0.1), ratio: (1.0, 1.0) };
    for transform in [Transform::CenterCrop { size: 0 }, upside_down] {
        let error = Transforms::new([transform]).unwrap_err();
        assert_eq!(error, TransformError::Senseless { transform });
    }
}
