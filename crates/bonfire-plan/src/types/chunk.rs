//! Which elements: ranges, the balanced shard of a rank, the chunks of a range, and bytes.
//!
//! Elements and bytes are distinct; they are converted here and nowhere else.

use std::fmt;
use std::iter::Sum;
use std::num::NonZeroUsize;
use std::ops::{Add, AddAssign, Range};
use std::str::FromStr;

use crate::{DType, Rank, WorldSize};

/// A half-open range of elements of a rank's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElemRange {
    start: usize,
    end: usize,
}

impl ElemRange {
    /// The elements from `start` up to but not including `end`.
    ///
    /// # Panics
    /// When `start` is behind `end`.
    #[track_caller]
    pub const fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "a range must not start behind its end");
        Self { start, end }
    }

    /// The first `count` elements, from 0 on.
    pub const fn up_to(count: usize) -> Self {
        Self::new(0, count)
    }

    /// The first element, counted from 0.
    pub const fn start(self) -> usize {
        self.start
    }

    /// One past the last element.
    pub const fn end(self) -> usize {
        self.end
    }

    /// How many elements there are.
    pub const fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the range has no elements.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same range, to index a slice with.
    pub const fn as_range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl fmt::Debug for ElemRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for ElemRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.start, self.end)
    }
}

/// A number of bytes, displayed in binary units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// Wraps a plain number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The bytes that `elems` elements of `dtype` occupy.
    pub const fn of(elems: u64, dtype: DType) -> Self {
        Self(elems * dtype.size_bytes() as u64)
    }

    /// Returns the plain number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Bytes {
    /// In binary units, exact where the number is a whole multiple.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(formatter, "{} B", self.0);
        }
        let exponent = self.0.ilog2() / 10;
        let unit = 1_u64 << (10 * exponent);
        let name = UNITS[exponent as usize - 1];
        if self.0.is_multiple_of(unit) {
            write!(formatter, "{} {name}", self.0 / unit)
        } else {
            write!(formatter, "{:.2} {name}", self.0 as f64 / unit as f64)
        }
    }
}

impl Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(bytes: I) -> Self {
        bytes.fold(Self::default(), Self::add)
    }
}

/// Not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a number of bytes such as 4096, 64K, 1.5G or 80GiB")]
pub struct UnknownBytes(String);

impl FromStr for Bytes {
    type Err = UnknownBytes;

    /// Reads a number and a unit, in either case: `K`, `KiB`, `M`, `MiB` and so on up to `T` are powers of 1024,
    /// `KB`, `MB` and so on powers of 1000; without a unit, or with `B`, they are bytes. A capital before a small `b`,
    /// as in `Gb`, means bits. A fraction of a byte is cut off; a fraction of bytes is an error.
    ///
    /// ```
    /// # mod bonfire { pub mod plan { pub use bonfire_plan::*; } }
    /// use bonfire::plan::Bytes;
    ///
    /// assert_eq!("64M".parse(), Ok(Bytes::new(64 << 20)));
    /// assert_eq!("1.5 GiB".parse(), Ok(Bytes::new(3 << 29)));
    /// assert_eq!("80GB".parse(), Ok(Bytes::new(80_000_000_000)));
    /// ```
    fn from_str(text: &str) -> Result<Self, UnknownBytes> {
        let unknown = || UnknownBytes(text.to_owned());
        let bits = text.strip_suffix('b');
        if let Some(bits) = bits.filter(|rest| rest.ends_with(['K', 'M', 'G', 'T'])) {
            let bytes: Self = format!("{bits}B").parse().map_err(|_| unknown())?;
            return Ok(Self(bytes.0 / 8));
        }
        let lower = text.trim().to_ascii_lowercase();
        let letters = lower.find(|character: char| character.is_ascii_alphabetic());
        let (number, unit) = lower.split_at(letters.unwrap_or(lower.len()));
        let (prefix, base) = match unit.strip_suffix("ib") {
            Some(prefix) => (prefix, 1024_u64),
            None => match unit.strip_suffix('b') {
                Some(prefix) => (prefix, 1000),
                None => (unit, 1024),
            },
        };
        let power = match prefix {
            "" if !unit.ends_with("ib") => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            _ => return Err(unknown()),
        };
        let (number, factor) = (number.trim(), base.pow(power));
        if !number.starts_with(|character: char| character.is_ascii_digit()) {
            return Err(unknown());
        }
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(unknown);
        }
        let bytes = number.parse::<f64>().map(|number| number * factor as f64);
        match bytes {
            Ok(bytes) if power > 0 && bytes < u64::MAX as f64 => Ok(Self(bytes as u64)),
            _ => Err(unknown()),
        }
    }
}

/// The shard of `count` elements that `rank` owns.
///
/// Shards are contiguous, in rank order, and differ by at most one element: the first
/// `count % world_size` are the longer ones.
///
/// ```
/// use bonfire_plan::{ElemRange, Rank, WorldSize, shard_range};
///
/// let world = WorldSize::new(3)?;
/// let shards: Vec<_> = world.ranks().map(|rank| shard_range(10, world, rank)).collect();
/// assert_eq!(shards, [ElemRange::new(0, 4), ElemRange::new(4, 7), ElemRange::new(7, 10)]);
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
///
/// # Panics
/// When `rank` is not a member of the world.
pub fn shard_range(count: usize, world_size: WorldSize, rank: Rank) -> ElemRange {
    world_size.assert_member(rank);
    let (base, longer) = (count / world_size.len(), count % world_size.len());
    let index = rank.index();
    let start = index * base + index.min(longer);
    ElemRange::new(start, start + base + usize::from(index < longer))
}

/// The chunks of `range`, in order: all of `chunk_elems_max` elements but the last, which has the rest.
///
/// There is always at least one: an empty range is one empty chunk, so that a frame with its header
/// is sent even when there is no data.
///
/// ```
/// use bonfire_plan::{ElemRange, chunks};
/// use std::num::NonZeroUsize;
///
/// let chunk_elems_max = NonZeroUsize::new(4).unwrap();
/// let pieces: Vec<_> = chunks(ElemRange::new(10, 19), chunk_elems_max).collect();
/// assert_eq!(pieces, [ElemRange::new(10, 14), ElemRange::new(14, 18), ElemRange::new(18, 19)]);
/// assert_eq!(chunks(ElemRange::new(7, 7), chunk_elems_max).count(), 1);
/// ```
pub fn chunks(
    range: ElemRange,
    chunk_elems_max: NonZeroUsize,
) -> impl ExactSizeIterator<Item = ElemRange> + DoubleEndedIterator + Clone {
    (0..chunk_count(range, chunk_elems_max)).map(move |index| {
        chunk(range, chunk_elems_max, index).expect("the index is below the count")
    })
}

/// One of the [`chunks`] of a range, if it has that many.
pub(crate) fn chunk(
    range: ElemRange,
    chunk_elems_max: NonZeroUsize,
    index: usize,
) -> Option<ElemRange> {
    if index >= chunk_count(range, chunk_elems_max) {
        return None;
    }
    let start = range.start + index * chunk_elems_max.get();
    let len = chunk_elems_max.get().min(range.end - start);
    Some(ElemRange::new(start, start + len))
}

pub(crate) fn chunk_count(range: ElemRange, chunk_elems_max: NonZeroUsize) -> usize {
    range.len().div_ceil(chunk_elems_max.get()).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_read_as_people_write_them() {
        let bytes = |text: &str| text.parse::<Bytes>().map(Bytes::get);
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("12 B", 12),
            ("64K", 64 << 10),
            ("3m", 3 << 20),
            ("64MiB", 64 << 20),
            ("64MB", 64_000_000),
            ("1.5G", 3 << 29),
            ("0.5 kib", 512),
            (" 2T ", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "G",
            "-1",
            "-1G",
            "1X",
            "1iB",
            "1e",
            "inf",
            "nan",
            "1.2.3",
            "1 G B",
            "99999999999999999999G",
            "18446744073709551615K",
            "1e30G",
        ] {
            let error = bytes(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
    }

    proptest! {
        /// Two digits behind the point are shown.
        #[test]
        fn what_is_shown_is_read_again(bytes in 0_u64..1 << 50) {
            let read: Bytes = Bytes::new(bytes).to_string().parse().unwrap();
            let difference = read.get().abs_diff(bytes) as f64;
            prop_assert!(difference <= 0.005 * bytes as f64, "{bytes}: {read}");
        }
    }
}
