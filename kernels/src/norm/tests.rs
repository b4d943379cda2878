//! The reference against exact sums.

use half::bf16;

use super::*;

const WIDE: SquaredNorm = SquaredNorm {
    element: FloatElement::F32,
    width: Width::Vector,
};

#[test]
fn squares_of_small_integers_are_summed_exactly() {
    for elems in [0_usize, 1, 3, 4, 1023, 1_048_576 + 7] {
        let buffer: Vec<f32> = (0..elems).map(|index| (index % 3) as f32).collect();
        let exact: usize = (0..elems).map(|index| (index % 3) * (index % 3)).sum();
        assert_eq!(reference(WIDE, &buffer), exact as f32, "{elems} elements");
    }
}

#[test]
fn small_squares_are_not_lost_beside_a_large_one() {
    // One after the other, 2^24 squares of 1 would end at 2^24 whatever follows.
    let elems = (1 << 24) + (1 << 20);
    let norm = SquaredNorm {
        element: FloatElement::Bf16,
        ..WIDE
    };
    let buffer = vec![bf16::ONE; elems];
    assert_eq!(reference(norm, &buffer), elems as f32);
}

#[test]
fn one_nan_makes_the_norm_nan() {
    let mut buffer = [1.0_f32; 9];
    buffer[8] = f32::NAN;
    assert!(reference(WIDE, &buffer).is_nan());
}
