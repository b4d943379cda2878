//! Binomial broadcast: the number of ranks that hold the data doubles in every round.
//!
//! Ranks are numbered from the root. The parent of a rank is that rank with its lowest set bit
//! cleared, so that a subtree is a contiguous run of ranks: where ranks are numbered host by host,
//! few frames cross between hosts. A rank passes on the largest subtree first. Chunks follow one
//! another down the tree.
//!
//! No deadlock, even with one slot: frames only ever travel away from the root.

use crate::schedule::ScheduleShape;
use crate::{Rank, Step};

/// Which rank of which tree.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The rank that the data comes from.
    pub(crate) root: Rank,
    /// The rank whose steps are wanted.
    pub(crate) rank: Rank,
}

pub(crate) fn broadcast(shape: &ScheduleShape, place: Place, steps: &mut Vec<Step>) {
    let world = shape.world_size;
    let distance = world.behind(place.rank, place.root.get()).get();
    let at = |distance| world.ahead(place.root, distance);
    // The bits below a rank's lowest set bit lead to its children; from the root all bits do.
    let child_bits = if distance == 0 {
        u32::BITS
    } else {
        distance.trailing_zeros()
    };
    let children: Vec<_> = (0..child_bits)
        .rev()
        .filter_map(|bit| distance.checked_add(1 << bit))
        .filter(|&child| child < world.get())
        .map(at)
        .collect();
    // Clears the lowest set bit; the root has none and no parent.
    let parent = distance.checked_sub(1).map(|below| at(distance & below));
    for chunk in shape.buffer_chunks() {
        if let Some(peer) = parent {
            steps.push(Step::Wait { peer });
            steps.push(Step::Copy {
                peer,
                target: chunk,
            });
            steps.push(Step::Release { peer });
        }
        steps.extend(children.iter().map(|&peer| Step::Put {
            peer,
            source: chunk,
        }));
    }
}
