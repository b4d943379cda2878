//! Uniform numbers, written out here so that what is drawn does not change with a library's methods.

use rand::Rng;

/// A uniform number below `bound`, which is not 0, by rejection.
pub(crate) fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    assert!(bound > 0, "there is no number below {bound}");
    // The largest multiple of `bound` that fits; numbers from there on would favour small results.
    let limit = u64::MAX - u64::MAX % bound;
    loop {
        let number = rng.next_u64();
        if number < limit {
            return number % bound;
        }
    }
}

/// A uniform number from 0 up to, but not, 1: the 53 bits that an f64 holds exactly.
pub(crate) fn unit(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
