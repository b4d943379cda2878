//! Which elements: ranges, the balanced shard of a rank, the chunks of a range, and bytes.
//!
//! Elements and bytes are distinct; they are converted here and nowhere else.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;

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

    /// The first `count` elements.
    pub const fn up_to(count: usize) -> Self {
        Self {
            start: 0,
            end: count,
        }
    }

    /// The first element.
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

    /// Whether there are none.
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

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// This many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The bytes that `elems` elements of `dtype` occupy.
    pub const fn of(elems: u64, dtype: DType) -> Self {
        Self(elems * dtype.size_bytes() as u64)
    }

    /// The number of bytes.
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

/// Units by their names in capitals, and their bytes.
const UNITS: [(&str, f64); 12] = [
    ("KIB", 1024.0),
    ("MIB", 1_048_576.0),
    ("GIB", 1_073_741_824.0),
    ("TIB", 1_099_511_627_776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("K", 1024.0),
    ("M", 1_048_576.0),
    ("G", 1_073_741_824.0),
    ("T", 1_099_511_627_776.0),
];

/// A text that is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number of bytes; write it as 4096, 64K, 16MiB, 1.5GiB or 10GB")]
pub struct NotBytes(String);

/// A number, or a number with a unit: `KiB` to `TiB` are powers of 1024, and so are `K` to `T`; `KB` to `TB` are
/// powers of 1000, of bits if the last letter is small, as in `Gb`. Otherwise case does not matter.
impl std::str::FromStr for Bytes {
    type Err = NotBytes;

    fn from_str(text: &str) -> Result<Self, NotBytes> {
        let capitals = text.to_ascii_uppercase();
        let unit = UNITS
            .iter()
            .find_map(|(unit, bytes)| Some((unit, capitals.strip_suffix(unit)?, bytes)));
        let bytes = match unit {
            None => text.parse().ok(),
            Some((unit, number, scale)) => {
                let number: Option<f64> = number.trim().parse().ok();
                let bytes = number.map(|number| (number * scale).trunc());
                let bytes = bytes.filter(|bytes| (0.0..u64::MAX as f64).contains(bytes));
                let is_bits = unit.len() == 2 && text.ends_with('b');
                bytes.map(|bytes| bytes as u64 / if is_bits { 8 } else { 1 })
            }
        };
        bytes.map(Self).ok_or_else(|| NotBytes(text.to_owned()))
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
    assert!(
        world_size.contains(rank),
        "rank {rank} is not a member of a world of {world_size}"
    );
    let (base, longer) = (count / world_size.len(), count % world_size.len());
    let index = rank.index();
    let start = index * base + index.min(longer);
    ElemRange::new(start, start + base + usize::from(index < longer))
}

/// The chunks of `range`, in order: all of `chunk_elems_max` elements but the last, which has the
/// rest.
///
/// There is always at least one: an empty range is one empty chunk, so that a frame with its
/// header travels even when there is no data.
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

/// One of the [`chunks`] of a range, if it has so many.
pub(crate) fn chunk(
    range: ElemRange,
    chunk_elems_max: NonZeroUsize,
    index: usize,
) -> Option<ElemRange> {
    if index >= chunk_count(range, chunk_elems_max) {
        return None;
    }
    let start = range.start + index * chunk_elems_max.get();
    let rest = range.end - start;
    Some(ElemRange::new(
        start,
        start + rest.min(chunk_elems_max.get()),
    ))
}

/// How many [`chunks`] a range has.
pub(crate) fn chunk_count(range: ElemRange, chunk_elems_max: NonZeroUsize) -> usize {
    range.len().div_ceil(chunk_elems_max.get()).max(1)
}
