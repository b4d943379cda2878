//! Which ranks share a host.

use std::sync::Arc;

use crate::{Rank, WorldSize};

/// The host of every rank. Cheap to clone.
///
/// Hosts are numbered in the order of their first ranks, so that two layouts that group ranks alike
/// are equal whatever numbers they were made from.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_plan as plan; pub use bonfire_plan::WorldSize; } }
/// use bonfire::collective::WorldSize;
/// use bonfire::collective::plan::Hosts;
///
/// let hosts = Hosts::new(vec![7, 7, 3, 3]);
/// assert_eq!(hosts, Hosts::new(vec![0, 0, 1, 1]));
/// assert_eq!(hosts.host_count(), 2);
/// assert_eq!(Hosts::new(vec![5, 5]), Hosts::one(WorldSize::new(2)?));
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hosts(Layout);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Layout {
    One { ranks: usize },
    Many(Arc<[u32]>),
}

impl Hosts {
    /// All ranks on one host.
    pub const fn one(world_size: WorldSize) -> Self {
        Self(Layout::One { ranks: world_size.len() })
    }

    /// One host number per rank, in rank order. Numbers only say which ranks are together.
    pub fn new(mut numbers: Vec<u32>) -> Self {
        let mut seen = std::collections::HashMap::new();
        for number in &mut numbers {
            let fresh = u32::try_from(seen.len()).expect("hosts are no more than ranks");
            *number = *seen.entry(*number).or_insert(fresh);
        }
        let ranks = numbers.len();
        Self(match seen.len() {
            0 | 1 => Layout::One { ranks },
            _ => Layout::Many(numbers.into()),
        })
    }

    /// How many ranks there are.
    pub fn rank_count(&self) -> usize {
        match &self.0 {
            Layout::One { ranks } => *ranks,
            Layout::Many(numbers) => numbers.len(),
        }
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> usize {
        match &self.0 {
            Layout::One { .. } => 1,
            Layout::Many(numbers) => {
                let last = numbers.iter().max().expect("two hosts have two ranks");
                *last as usize + 1
            }
        }
    }

    /// The number of the host of every rank, in rank order; from 0.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        (0..self.rank_count()).map(|index| self.number_at(index))
    }

    /// The number of the run of every rank, in rank order; from 0. A run is consecutive ranks of one host.
    pub(crate) fn runs(&self) -> impl Iterator<Item = u32> + '_ {
        let mut run = 0;
        (0..self.rank_count()).map(move |index| {
            let before = index.checked_sub(1).map(|before| self.number_at(before));
            run += u32::from(before.is_some_and(|before| before != self.number_at(index)));
            run
        })
    }

    /// The number of `rank`'s host; from 0.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn number(&self, rank: Rank) -> u32 {
        let (index, ranks) = (rank.index(), self.rank_count());
        assert!(index < ranks, "rank {rank} of {ranks} ranks has no host");
        self.number_at(index)
    }

    fn number_at(&self, index: usize) -> u32 {
        match &self.0 {
            Layout::One { .. } => 0,
            Layout::Many(numbers) => numbers[index],
        }
    }
}
