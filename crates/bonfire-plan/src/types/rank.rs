//! Who takes part: ranks, and the world they belong to.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::PlanError;

/// The number of one participant, counted from 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Rank(u32);

impl Rank {
    /// The rank with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number, as it is sent.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number, as an index into a list with one entry per rank.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

/// How many ranks there are: at least one.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_plan::*; } }
/// use bonfire::collective::{Rank, WorldSize};
///
/// let world = WorldSize::new(3)?;
/// assert_eq!(world.next(Rank::new(2)), Rank::new(0));
/// assert!(WorldSize::new(0).is_err());
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorldSize(NonZeroU32);

impl WorldSize {
    /// A world of one rank, which communicates with nobody.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    pub(crate) const TWO: Self = Self(NonZeroU32::MIN.saturating_add(1));

    /// A world of `ranks` ranks.
    ///
    /// # Errors
    /// [`PlanError::EmptyWorld`] when `ranks` is 0.
    pub const fn new(ranks: u32) -> Result<Self, PlanError> {
        match NonZeroU32::new(ranks) {
            Some(ranks) => Ok(Self(ranks)),
            None => Err(PlanError::EmptyWorld),
        }
    }

    /// The number of ranks, never 0.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The number of ranks, as the length of a list with one entry per rank.
    #[expect(clippy::len_without_is_empty, reason = "a world is never empty")]
    pub const fn len(self) -> usize {
        self.0.get() as usize
    }

    /// Every rank, in ascending order.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> + Clone {
        (0..self.get()).map(Rank::new)
    }

    /// Whether `rank` is a member.
    pub const fn contains(self, rank: Rank) -> bool {
        rank.0 < self.0.get()
    }

    #[track_caller]
    pub(crate) fn assert_member(self, rank: Rank) {
        assert!(self.contains(rank), "rank {rank} is not a member of a world of {self}");
    }

    /// The rank that follows `rank` on the ring; in a world of one, `rank` itself.
    ///
    /// # Panics
    /// When `rank` is not a member.
    pub fn next(self, rank: Rank) -> Rank {
        self.ahead(rank, 1)
    }

    /// The rank that precedes `rank` on the ring; in a world of one, `rank` itself.
    ///
    /// # Panics
    /// When `rank` is not a member.
    pub fn prev(self, rank: Rank) -> Rank {
        self.behind(rank, 1)
    }

    pub(crate) fn ahead(self, rank: Rank, distance: u32) -> Rank {
        self.assert_member(rank);
        // In 64 bits, so that the sum cannot overflow in the largest world.
        let sum = u64::from(rank.0) + u64::from(distance);
        Rank((sum % u64::from(self.get())) as u32)
    }

    pub(crate) fn behind(self, rank: Rank, distance: u32) -> Rank {
        let size = self.get();
        self.ahead(rank, size - distance % size)
    }

    /// Every rank but `rank`, starting with its next neighbour, so that ranks which all send to
    /// all do not all send to the same one at once.
    pub(crate) fn peers(self, rank: Rank) -> impl DoubleEndedIterator<Item = Rank> + Clone {
        (1..self.get()).map(move |distance| self.ahead(rank, distance))
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_wrap_around_and_are_inverse() {
        for size in 1..=9 {
            let world = WorldSize::new(size).unwrap();
            for rank in world.ranks() {
                assert_eq!(world.prev(world.next(rank)), rank);
                for distance in 0..2 * size {
                    assert_eq!(world.behind(world.ahead(rank, distance), distance), rank);
                }
            }
        }
    }

    #[test]
    fn neighbours_do_not_overflow_in_the_largest_world() {
        let world = WorldSize::new(u32::MAX).unwrap();
        let last = Rank::new(u32::MAX - 1);
        assert_eq!(world.next(last), Rank::new(0));
        assert_eq!(world.prev(Rank::new(0)), last);
    }

    #[test]
    fn peers_are_everyone_else_once() {
        let world = WorldSize::new(5).unwrap();
        let mut peers: Vec<_> = world.peers(Rank::new(3)).collect();
        assert_eq!(peers[0], Rank::new(4));
        peers.sort();
        assert_eq!(peers, [0, 1, 2, 4].map(Rank::new));
    }

    #[test]
    fn an_empty_world_is_refused() {
        assert_eq!(WorldSize::new(0), Err(PlanError::EmptyWorld));
    }
}
