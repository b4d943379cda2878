//! Double binary tree: two trees over all ranks, each of which carries half of the buffer.
//!
//! After Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). In
//! one binary tree half of the ranks are leaves, which receive but never send. Here the leaves of one tree are the
//! inner nodes of the other, so that a rank sends and receives each half once, in logarithmic depth.
//!
//! Positions count from the root, which is at 0 and hangs above both trees. The trees are those over
//! positions 1 to n - 1 in which an odd position is a leaf; the second one gives each rank a
//! position of the other parity, by mirroring an even number of them and by shifting an odd number
//! by one. When that number is odd, one rank is a leaf twice.
//!
//! A rank is at different depths in the two trees, so a chunk reaches it earlier in one than in the other. It handles
//! chunks in the order in which they can reach it if every hop takes one unit of time: chunk c at time c plus the
//! number of hops before. Taking the trees by turns instead would hold every chunk back by the depth of a tree.
//!
//! No deadlock, even with one slot: order all work by (direction, time, tree, hops before, from the
//! last to the first). A put waits for the release of the chunk before, at the same time but one hop
//! further on; a wait for a put of an earlier time.

use super::shared::chunking::Chunking;
use super::shared::tree::{Family, Place};
use crate::{ElemRange, Rank, Step, WorldSize, shard_range};

pub(crate) fn broadcast(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let branches = branches(chunking.world_size, place);
    for (tree, chunk) in in_time(chunking, branches.each_ref().map(|branch| branch.depth)) {
        branches[tree].family.pass_down(chunk, steps);
    }
}

pub(crate) fn reduce(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let branches = branches(chunking.world_size, place);
    for (tree, chunk) in in_time(chunking, branches.each_ref().map(|branch| branch.height)) {
        branches[tree].family.fold_up(chunk, steps);
    }
}

/// Every chunk of both halves with the number of its tree, in the order of their times.
fn in_time(chunking: &Chunking, hops: [usize; 2]) -> impl Iterator<Item = (usize, ElemRange)> {
    let mut chunks = Vec::new();
    for (tree, hops) in hops.into_iter().enumerate() {
        let half = shard_range(chunking.buffer.len(), WorldSize::TWO, Rank::new(tree as u32));
        let half = chunking.of(half).enumerate();
        chunks.extend(half.map(|(index, chunk)| (index + hops, tree, chunk)));
    }
    chunks.sort_by_key(|&(time, tree, _)| (time, tree));
    chunks.into_iter().map(|(_, tree, chunk)| (tree, chunk))
}

struct Branch {
    family: Family,
    /// Hops from the root to this rank.
    depth: usize,
    /// Hops from the ranks that are furthest from the root to as far from it as this rank.
    height: usize,
}

fn branches(world: WorldSize, place: Place) -> [Branch; 2] {
    let last = world.get() - 1;
    let distance = world.behind(place.rank, place.root.get()).get();
    let deepest = deepest(last);
    [Tree::Straight, Tree::Crossed].map(|tree| {
        let depth = depth(tree.position(distance, last), last);
        Branch { family: family(world, place, tree), depth, height: deepest - depth }
    })
}

/// The most ancestors that any position has: those of position 1, which is leftmost.
fn deepest(last: u32) -> usize {
    depth(last.min(1), last)
}

fn depth(position: u32, last: u32) -> usize {
    let ancestors = std::iter::successors(parent(position, last), |&above| parent(above, last));
    ancestors.count()
}

#[derive(Clone, Copy)]
enum Tree {
    /// Positions are distances from the root.
    Straight,
    /// Positions have the other parity.
    Crossed,
}

impl Tree {
    /// The position of the rank at this distance from the root, where `last` is the largest distance.
    const fn position(self, distance: u32, last: u32) -> u32 {
        match self {
            _ if distance == 0 => 0,
            Self::Straight => distance,
            Self::Crossed if last.is_multiple_of(2) => last + 1 - distance,
            Self::Crossed => distance % last + 1,
        }
    }

    /// The inverse of [`Tree::position`], for the same `last`.
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
    let children = children(position, last).into_iter().flatten();
    Family { parent: parent(position, last).map(at), children: children.map(at).collect() }
}

/// Clears the lowest set bit and sets the next, if there is such a position; else only clears it.
fn parent(position: u32, last: u32) -> Option<u32> {
    let cleared = position & position.checked_sub(1)?;
    let above = u64::from(cleared) | (u64::from(position ^ cleared) << 1);
    let above = u32::try_from(above).ok().filter(|&above| above <= last);
    Some(above.unwrap_or(cleared))
}

/// Half of the lowest set bit to either side; to the right less, as far as there are positions.
fn children(position: u32, last: u32) -> [Option<u32>; 2] {
    let room = (last - position).checked_ilog2().map(|bit| 1 << bit);
    match (position & position.wrapping_neg()) >> 1 {
        // The root has one: the largest power of two.
        _ if position == 0 => [room, None],
        0 => [None, None],
        half => {
            let right = room.map(|room| position + half.min(room));
            [Some(position - half), right]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    // Miri runs a thousand times slower; it is there for the operations, not for the numbers.
    const LAST_MAX: u32 = if cfg!(miri) { 12 } else { 200 };

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
                    assert_eq!(parent(child, last), Some(position), "of {child} up to {last}");
                }
                let is_child = parent(position, last)
                    .is_none_or(|above| children(above, last).contains(&Some(position)));
                assert!(is_child, "{position} up to {last}");
                assert!(position % 2 == 0 || children(position, last) == [None; 2]);
                let ancestors = std::iter::successors(Some(position), |&at| parent(at, last));
                assert!(ancestors.count() as u32 <= (last + 1).ilog2() + 2);
                assert!(depth(position, last) <= deepest(last), "{position} up to {last}");
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
