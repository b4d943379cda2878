//! Sets of ranks, as words of bits that the caller keeps.

use crate::{Rank, WorldSize};

/// The words that a set of ranks of this world takes.
pub(super) fn words(world_size: WorldSize) -> usize {
    world_size.len().div_ceil(u64::BITS as usize)
}

pub(super) fn insert(set: &mut [u64], rank: Rank) {
    let bits = u64::BITS as usize;
    set[rank.index() / bits] |= 1 << (rank.index() % bits);
}

pub(super) fn unite(set: &mut [u64], other: &[u64]) {
    assert_eq!(set.len(), other.len(), "both sets belong to one world");
    for (word, other) in set.iter_mut().zip(other) {
        *word |= other;
    }
}

pub(super) fn first_common(left: &[u64], right: &[u64]) -> Option<Rank> {
    first_bit(left.iter().zip(right).map(|(left, right)| left & right))
}

/// The lowest rank of the world that is not in the set.
pub(super) fn first_missing(set: &[u64], world_size: WorldSize) -> Option<Rank> {
    first_bit(set.iter().map(|word| !word)).filter(|&rank| world_size.contains(rank))
}

pub(super) fn members(set: &[u64], world_size: WorldSize) -> impl Iterator<Item = Rank> {
    let (bits, ranks) = (u64::BITS as usize, world_size.ranks());
    ranks.filter(move |rank| set[rank.index() / bits] >> (rank.index() % bits) & 1 == 1)
}

fn first_bit(words: impl Iterator<Item = u64>) -> Option<Rank> {
    let (index, word) = (0..).zip(words).find(|&(_, word)| word != 0)?;
    Some(Rank::new(index * u64::BITS + word.trailing_zeros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_span_words() {
        let world = WorldSize::new(130).unwrap();
        let mut set = vec![0; words(world)];
        assert_eq!(set.len(), 3);
        let ranks = [0, 63, 64, 129].map(Rank::new);
        for rank in ranks {
            insert(&mut set, rank);
        }
        assert!(members(&set, world).eq(ranks));
        assert_eq!(first_missing(&set, world), Some(Rank::new(1)));
        let mut other = vec![0; words(world)];
        insert(&mut other, Rank::new(129));
        assert_eq!(first_common(&set, &other), Some(Rank::new(129)));
        for rank in world.ranks().take(129) {
            insert(&mut other, rank);
        }
        assert_eq!(first_missing(&other, world), None);
        unite(&mut set, &other);
        assert_eq!(set, other);
    }
}
