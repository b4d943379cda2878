//! Double binary tree: two trees over all ranks, each of which carries half of the buffer.
//!
//! After Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan" (2009). In one binary tree half of the ranks are leaves, which receive but never send. Here
//! the leaves of one tree are the inner nodes of the other, so that a rank sends and receives each
//! half once, in logarithmic depth.
//!
//! Positions count from the root, which is at 0 and hangs above both trees. The trees are those over
//! positions 1 to n - 1 in which an odd position is a leaf; the second one gives each rank a
//! position of the other parity, by mirroring an even number of them and by shifting an odd number
//! by one. When that number is odd, one rank is a leaf twice.
//!
//! No deadlock, even with one slot: order all work by (direction, chunk, tree, depth). A put waits
//! only for a release of an earlier chunk or tree, a wait only for a put of its own that is nearer
//! to where the chunk comes from.

use crate::chunking::Chunking;
use crate::tree::{Family, Place};
use crate::{ElemRange, Step, WorldSize, shard_range};

pub(crate) fn broadcast(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    each_chunk(chunking, place, |family, chunk| {
        family.pass_down(chunk, steps);
    });
}

pub(crate) fn reduce(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    each_chunk(chunking, place, |family, chunk| {
        family.fold_up(chunk, steps);
    });
}

/// Calls for every chunk of both halves, the halves by turns, with the tree that carries it.
fn each_chunk(chunking: &Chunking, place: Place, mut call: impl FnMut(&Family, ElemRange)) {
    let world = chunking.world_size;
    let families = [Tree::Straight, Tree::Crossed].map(|tree| family(world, place, tree));
    let mut halves = chunking.halves().map(|half| chunking.of(half));
    for _ in 0..halves[0].len().max(halves[1].len()) {
        for (family, half) in families.iter().zip(&mut halves) {
            if let Some(chunk) = half.next() {
                call(family, chunk);
            }
        }
    }
}

/// The two trees.
#[derive(Clone, Copy)]
enum Tree {
    /// Positions are distances from the root.
    Straight,
    /// Positions have the other parity.
    Crossed,
}

impl Tree {
    /// The position of the rank at this distance from the root, where `last` is the largest
    /// distance.
    const fn position(self, distance: u32, last: u32) -> u32 {
        match self {
            _ if distance == 0 => 0,
            Self::Straight => distance,
            Self::Crossed if last.is_multiple_of(2) => last + 1 - distance,
            Self::Crossed => distance % last + 1,
        }
    }

    /// The inverse of [`Tree::position`].
    const fn distance(self, position: u32, last: u32) -> u32 {
        match self {
            _ if position == 0 => 0,
            Self::Straight => position,
            Self::Crossed if last.is_multiple_of(2) => last + 1 - position,
            Self::Crossed => (position + last - 2) % last + 1,
        }
    }
}

fn family(world: WorldSize, place: Place, tree: Tree) -> Family {
    let last = world.get() - 1;
    let distance = world.behind(place.rank, place.root.get()).get();
    let at = |position| world.ahead(place.root, tree.distance(position, last));
    let position = tree.position(distance, last);
    Family {
        parent: parent(position, last).map(at),
        children: children(position, last)
            .into_iter()
            .flatten()
            .map(at)
            .collect(),
    }
}

/// Clears the lowest set bit and sets the next, if there is such a position; else only clears it.
fn parent(position: u32, last: u32) -> Option<u32> {
    let cleared = position & position.checked_sub(1)?;
    let above = u64::from(cleared) | (u64::from(position ^ cleared) << 1);
    Some(
        u32::try_from(above)
            .ok()
            .filter(|&above| above <= last)
            .unwrap_or(cleared),
    )
}

/// Half of the lowest set bit to either side; to the right less, as far as there are positions.
fn children(position: u32, last: u32) -> [Option<u32>; 2] {
    if position == 0 {
        // The root has one: the largest power of two.
        return [last.checked_ilog2().map(|bit| 1 << bit), None];
    }
    let half = (1 << position.trailing_zeros()) >> 1;
    let left = (half > 0).then(|| position - half);
    let room = (last - position).checked_ilog2().map(|bit| 1 << bit);
    let right = room
        .filter(|_| half > 0)
        .map(|room| position + half.min(room));
    [left, right]
}

impl Chunking {
    /// The parts of the buffer that the two trees carry.
    fn halves(&self) -> [ElemRange; 2] {
        let two = WorldSize::TWO;
        let mut halves = two
            .ranks()
            .map(|half| shard_range(self.buffer.len(), two, half));
        [(); 2].map(|()| halves.next().expect("two halves"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    const LAST_MAX: u32 = 200;

    #[test]
    fn positions_come_back_and_have_the_other_parity() {
        for last in 1..=LAST_MAX {
            let mut same_parity = 0;
            for distance in 0..=last {
                let position = Tree::Crossed.position(distance, last);
                assert!(position <= last);
                assert_eq!(Tree::Crossed.distance(position, last), distance);
                if distance > 0 && position % 2 == distance % 2 {
                    same_parity += 1;
                }
            }
            assert_eq!(same_parity, last % 2, "up to {last}");
        }
    }

    #[test]
    fn parents_and_children_agree_and_depth_is_logarithmic() {
        for last in 0..=LAST_MAX {
            assert_eq!(parent(0, last), None);
            for position in 0..=last {
                for child in children(position, last).into_iter().flatten() {
                    assert_eq!(
                        parent(child, last),
                        Some(position),
                        "of {child} up to {last}"
                    );
                }
                let is_child = parent(position, last)
                    .is_none_or(|above| children(above, last).contains(&Some(position)));
                assert!(is_child, "{position} up to {last}");
                assert!(position % 2 == 0 || children(position, last) == [None; 2]);
                let ancestors = std::iter::successors(Some(position), |&at| parent(at, last));
                assert!(ancestors.count() as u32 <= (last + 1).ilog2() + 2);
            }
        }
    }

    #[test]
    fn no_rank_has_children_in_both_trees_but_the_root() {
        for ranks in 2..=LAST_MAX {
            let world = WorldSize::new(ranks).unwrap();
            let root = Rank::new(ranks / 3);
            for rank in world.ranks().filter(|&rank| rank != root) {
                let place = Place { root, rank };
                let [one, other] = [Tree::Straight, Tree::Crossed]
                    .map(|tree| family(world, place, tree).children.len());
                assert!(one == 0 || other == 0, "rank {rank} of {ranks}");
            }
        }
    }
}
