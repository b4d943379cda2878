//! Numbers that follow from a seed, the same on every machine and in every version.

use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "no number is below 0");
        self.number() % end
    }

    /// A place in a list of `len`.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `times`, on average; never if that is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (start, end) = range.into_inner();
        start + self.below(end - start + 1)
    }

    /// A time of the range, in steps of a microsecond.
    pub fn time(&mut self, range: RangeInclusive<Duration>) -> Duration {
        let (start, end) = range.into_inner();
        let span = end.saturating_sub(start).as_micros() as u64;
        start + Duration::from_micros(self.within(0..=span))
    }

    /// A time up to `longest`, as often below as above a thousandth of it: what matters in a protocol
    /// is over soon, and what is left takes long.
    pub fn moment(&mut self, longest: Duration) -> Duration {
        let doublings = self.below(20) as u32;
        let longest = longest / (1 << doublings);
        longest / 2 + self.time(Duration::ZERO..=longest / 2)
    }

    pub fn pick<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.index(some.len())]
    }
}
