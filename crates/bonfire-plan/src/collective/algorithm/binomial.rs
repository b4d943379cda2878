//! Binomial broadcast and reduce: the number of ranks that hold the data doubles in every round, or
//! the number of ranks whose data is not yet folded in halves.
//!
//! Ranks are numbered from the root. The parent of a rank is that rank with its lowest set bit
//! cleared, so that a subtree is a contiguous run of ranks: where ranks are numbered host by host,
//! few frames cross between hosts. A broadcast passes on to the largest subtree first, a reduce
//! takes the smallest first. Chunks follow one another along the tree.

use super::shared::chunking::Chunking;
use super::shared::tree::{Family, Place};
use crate::{Step, WorldSize};

pub(crate) fn broadcast(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let family = family(chunking.world_size, place);
    for chunk in chunking.of_buffer() {
        family.pass_down(chunk, steps);
    }
}

/// A rank folds its own data and its children's, in the order of their distance from the root.
pub(crate) fn reduce(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let family = family(chunking.world_size, place);
    for chunk in chunking.of_buffer() {
        family.fold_up(chunk, steps);
    }
}

fn family(world: WorldSize, place: Place) -> Family {
    let distance = world.behind(place.rank, place.root.get()).get();
    let at = |distance| world.ahead(place.root, distance);
    // The bits below a rank's lowest set bit lead to its children; from the root all bits do.
    let child_bits = 0..distance.trailing_zeros();
    let children = child_bits.filter_map(|bit| distance.checked_add(1 << bit));
    let children = children.filter(|&child| child < world.get());
    let children = children.map(at).collect();
    // Clears the lowest set bit; the root has none and no parent.
    let parent = distance.checked_sub(1).map(|below| at(distance & below));
    Family { parent, children }
}
