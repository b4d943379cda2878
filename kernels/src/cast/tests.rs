//! The references: conversions against the crate `half`, and stochastic rounding against what it
//! promises, which is its neighbours and its mean.

use super::*;

fn stochastic(half: Half, value: f32, count: usize) -> Vec<f32> {
    let mut target = vec![0; count];
    let random = Random { seed: 7, first: 0 };
    reference_stochastic(half, &vec![value; count], &mut target, random);
    let widen = |bits: &u16| match half {
        Half::F16 => f16::from_bits(*bits).to_f32(),
        Half::Bf16 => bf16::from_bits(*bits).to_f32(),
    };
    target.iter().map(widen).collect()
}

/// Every result is the neighbour below or above, and their mean is the value within four standard
/// deviations of a mean of `count` draws.
fn check_unbiased(half: Half, value: f32, below: f32, above: f32) {
    const COUNT: usize = 100_000;
    let results = stochastic(half, value, COUNT);
    assert!(
        results
            .iter()
            .all(|&result| result == below || result == above),
        "{half:?} of {value}: {below} or {above}"
    );
    let mean = results.iter().map(|&result| f64::from(result)).sum::<f64>() / COUNT as f64;
    let gap = f64::from(above) - f64::from(below);
    let upper = (f64::from(value) - f64::from(below)) / gap;
    let deviation = gap * (upper * (1.0 - upper) / COUNT as f64).sqrt();
    let error = (mean - f64::from(value)).abs();
    assert!(error <= 4.0 * deviation, "{half:?} of {value}: mean {mean}");
}

#[test]
fn stochastic_rounding_takes_neighbours_and_is_right_on_average() {
    let bf = |bits: u16| bf16::from_bits(bits).to_f32();
    check_unbiased(Half::Bf16, 1.001, bf(0x3f80), bf(0x3f81));
    check_unbiased(Half::Bf16, -1.0065, bf(0xbf81), bf(0xbf80));
    let half = |bits: u16| f16::from_bits(bits).to_f32();
    check_unbiased(Half::F16, 1.0002, half(0x3c00), half(0x3c01));
    check_unbiased(Half::F16, -1.0009, half(0xbc01), half(0xbc00));
    // Denormals of f16, near one unit and far below it.
    check_unbiased(Half::F16, 1.7 * f32::powi(2.0, -24), half(1), half(2));
    check_unbiased(Half::F16, 0.01 * f32::powi(2.0, -24), 0.0, half(1));
    // The largest f16 and infinity are neighbours only in their bits.
    for result in stochastic(Half::F16, 65_510.0, 1000) {
        assert!(result == 65_504.0 || result == f32::INFINITY, "{result}");
    }
}

#[test]
fn what_is_exact_stays_and_what_is_special_too() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -2.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f16::MIN_POSITIVE.to_f32(),
    ];
    for half in [Half::F16, Half::Bf16] {
        for value in values {
            let results = stochastic(half, value, 100);
            let same = |result: &f32| result.to_bits() == value.to_bits();
            assert!(results.iter().all(same), "{half:?} of {value}");
        }
        let results = stochastic(half, f32::NAN, 100);
        assert!(results.iter().all(|result| result.is_nan()), "{half:?}");
    }
    // A NaN whose bits are all in the half that is dropped must not become infinite.
    assert!(stochastic(Half::Bf16, f32::from_bits(0x7f80_0001), 1)[0].is_nan());
}

#[test]
fn random_numbers_do_not_depend_on_the_division_of_the_work() {
    let whole = Random { seed: 3, first: 5 };
    let part = Random {
        seed: 3,
        first: 5 + 1000,
    };
    assert_eq!(whole.bits(1007), part.bits(7));
    let carry = Random {
        seed: 3,
        first: u64::from(u32::MAX),
    };
    let high = Random {
        seed: 3,
        first: 1 << 32,
    };
    assert_eq!(carry.bits(1), high.bits(0));
    assert_ne!(whole.bits(0), Random { seed: 4, first: 5 }.bits(0));
    assert_ne!(
        Random {
            seed: 1 << 40,
            first: 0
        }
        .bits(0),
        Random::default().bits(0)
    );
}

#[test]
fn conversions_round_to_nearest_even() {
    // Two ties of bf16, one to either side, and a tie of f16 between its largest and infinity.
    let source = [
        1.0 + 0.5 / 128.0,
        1.0 + 1.5 / 128.0,
        65_520.0,
        1e-8,
        f32::NAN,
    ];
    let mut target = [bf16::ZERO; 5];
    reference(&source, &mut target);
    assert_eq!(target[0].to_f32(), 1.0);
    assert_eq!(target[1].to_f32(), 1.0 + 2.0 / 128.0);
    assert!(target[4].is_nan());
    let mut target = [f16::ZERO; 5];
    reference(&source, &mut target);
    assert_eq!(target[2], f16::INFINITY);
    assert_eq!(target[3], f16::ZERO);
    let mut wide = [0.0_f32; 2];
    reference(&[f16::MIN_POSITIVE_SUBNORMAL, f16::MAX], &mut wide);
    assert_eq!(wide, [f32::powi(2.0, -24), 65_504.0]);
}
