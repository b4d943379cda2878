//! Which elements of a tensor a rank has where ranks have parts along one of its dimensions.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Rank, WorldSize, shard_range};

/// How a tensor is divided among ranks along a dimension.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_plan::*; } pub mod world { pub use bonfire_plan::*; } }
/// use bonfire::collective::{Rank, WorldSize};
/// use bonfire::world::Cut;
///
/// // A layer with the columns of two layers side by side, each of which two ranks share.
/// let cut = Cut { dim: 1, sections: 2 };
/// let (ranks, second) = (WorldSize::new(2)?, Rank::new(1));
/// let columns: Vec<_> = cut.ranges(8, ranks, second).collect();
/// assert_eq!(columns, [2..4, 6..8]);
/// let elements: Vec<_> = cut.runs(&[2, 8], ranks, second).collect();
/// assert_eq!(elements, [2..4, 6..8, 10..12, 14..16]);
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The dimension that is divided.
    pub dim: usize,
    /// Of how many runs of equal length it consists, one behind the other, each of which is divided.
    pub sections: usize,
}

impl Cut {
    /// Which of `size` entries along the dimension are a rank's, in the order in which it has them. In each section ranks
    /// have runs that follow one another and differ by at most one entry.
    pub fn ranges(
        self,
        size: usize,
        ranks: WorldSize,
        rank: Rank,
    ) -> impl Iterator<Item = Range<usize>> + Clone {
        let section = size / self.sections;
        let own = shard_range(section, ranks, rank).as_range();
        (0..self.sections).map(move |index| {
            let start = index * section;
            start + own.start..start + own.end
        })
    }

    /// Where the elements of a rank's part are in a tensor of this shape, in row-major order: runs that follow one another
    /// in the part.
    ///
    /// # Panics
    /// If the shape has no such dimension.
    pub fn runs(
        self,
        shape: &[usize],
        ranks: WorldSize,
        rank: Rank,
    ) -> impl Iterator<Item = Range<usize>> {
        let (before, behind) = shape.split_at(self.dim);
        let (outer, size) = (before.iter().product::<usize>(), behind[0]);
        let inner: usize = behind[1..].iter().product();
        let ranges = self.ranges(size, ranks, rank);
        (0..outer).flat_map(move |block| {
            let start = block * size;
            let own = ranges.clone();
            own.map(move |range| (start + range.start) * inner..(start + range.end) * inner)
        })
    }

    /// The shape of a rank's part of a tensor of this shape.
    ///
    /// # Panics
    /// If the shape has no such dimension.
    pub fn part(self, shape: &[usize], ranks: WorldSize, rank: Rank) -> Vec<usize> {
        let mut part = shape.to_vec();
        let ranges = self.ranges(shape[self.dim], ranks, rank);
        part[self.dim] = ranges.map(|range| range.len()).sum();
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_part() {
        let shape = [3, 12, 5];
        for dim in 0..3 {
            for (sections, ranks) in [(1, 1), (1, 2), (1, 5), (3, 2), (3, 4)] {
                if shape[dim] % sections != 0 {
                    continue;
                }
                let (cut, ranks) = (Cut { dim, sections }, WorldSize::new(ranks).unwrap());
                let mut seen = Vec::new();
                for rank in ranks.ranks() {
                    let own: Vec<usize> = cut.runs(&shape, ranks, rank).flatten().collect();
                    assert!(own.is_sorted());
                    let part = cut.part(&shape, ranks, rank);
                    assert_eq!(own.len(), part.iter().product::<usize>());
                    seen.extend(own);
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..180).collect::<Vec<_>>(), "{cut:?} among {ranks}");
            }
        }
    }
}
