//! How fast the ranks of a group read each other's memory.

use std::fmt;

use bonfire_plan::{Rank, WorldSize};

/// What each rank of a group measured when the group was formed: how fast it copies from the memory of every
/// other, in GB/s (10^9 bytes per second), while all the others copy as well.
#[derive(Clone, Debug, PartialEq)]
pub struct PairBandwidths {
    world_size: WorldSize,
    /// A row for each reader, a column for each owner; its own column of a row says nothing.
    gigabytes: Vec<f64>,
}

impl PairBandwidths {
    /// From the rows of all ranks, one behind the other.
    pub(crate) fn new(world_size: WorldSize, gigabytes: Vec<f64>) -> Self {
        let ranks = world_size.len();
        assert_eq!(gigabytes.len(), ranks * ranks, "a row for each of {ranks}");
        let this = Self { world_size, gigabytes };
        for (reader, owner, figure) in this.pairs() {
            let is_rate = figure.is_finite() && figure > 0.0;
            assert!(is_rate, "rank {reader} reads rank {owner} at {figure} GB/s");
        }
        this
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// At how many GB/s `reader` copies from the memory of `owner`; `None` from its own.
    ///
    /// # Panics
    /// If one of them is not a rank of the group.
    pub fn of(&self, reader: Rank, owner: Rank) -> Option<f64> {
        for rank in [reader, owner] {
            let world_size = self.world_size;
            assert!(world_size.contains(rank), "rank {rank} of {world_size}");
        }
        let index = reader.index() * self.world_size.len() + owner.index();
        (reader != owner).then(|| self.gigabytes[index])
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Rank, Rank, f64)> + '_ {
        let ranks = self.world_size.ranks();
        ranks.flat_map(move |reader| {
            let owners = self.world_size.ranks();
            owners.filter_map(move |owner| Some((reader, owner, self.of(reader, owner)?)))
        })
    }

    /// The slowest and the fastest pair: reader, owner and GB/s; `None` where there is but one rank.
    pub(crate) fn extremes(&self) -> Option<[(Rank, Rank, f64); 2]> {
        let by_rate = |a: &(Rank, Rank, f64), b: &(Rank, Rank, f64)| a.2.total_cmp(&b.2);
        let slowest = self.pairs().min_by(by_rate)?;
        let fastest = self.pairs().max_by(by_rate)?;
        Some([slowest, fastest])
    }

    /// Seconds for a byte that `reader` copies from `owner`; none from its own memory.
    pub(crate) fn seconds_per_byte(&self, reader: Rank, owner: Rank) -> f64 {
        self.of(reader, owner).map_or(0.0, |gigabytes| 1e-9 / gigabytes)
    }
}

/// A row for each reader, in GB/s.
impl fmt::Display for PairBandwidths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12}", "GB/s")?;
        for owner in self.world_size.ranks() {
            write!(f, " {:>8}", format!("rank {owner}"))?;
        }
        for reader in self.world_size.ranks() {
            write!(f, "\nrank {reader:<2} reads")?;
            for owner in self.world_size.ranks() {
                match self.of(reader, owner) {
                    Some(gigabytes) if gigabytes < 10.0 => write!(f, " {gigabytes:>8.2}")?,
                    Some(gigabytes) => write!(f, " {gigabytes:>8.1}")?,
                    None => write!(f, " {:>8}", "-")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_a_figure_for_every_other_and_the_extremes_are_found() {
        let figures = vec![0.0, 20.0, 5.0, 21.0, 0.0, 40.0, 6.25, 22.0, 0.0];
        let pairs = PairBandwidths::new(WorldSize::new(3).unwrap(), figures);
        let [first, second, third] = [0, 1, 2].map(Rank::new);
        assert_eq!(pairs.of(second, third), Some(40.0));
        assert_eq!(pairs.of(third, third), None);
        assert_eq!(pairs.extremes(), Some([(first, third, 5.0), (second, third, 40.0)]));
        let text = pairs.to_string();
        assert!(text.contains("rank 2  reads     6.25     22.0        -"), "{text}");
    }

    #[test]
    fn a_lone_rank_has_no_pair() {
        let pairs = PairBandwidths::new(WorldSize::new(1).unwrap(), vec![0.0]);
        assert_eq!(pairs.extremes(), None);
    }
}
