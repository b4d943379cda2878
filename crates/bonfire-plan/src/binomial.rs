//! Binomial broadcast and reduce: the number of ranks that hold the data doubles in every round, or
//! the number of ranks whose data is not yet folded in halves.
//!
//! Ranks are numbered from the root. The parent of a rank is that rank with its lowest set bit
//! cleared, so that a subtree is a contiguous run of ranks: where ranks are numbered host by host,
//! few frames cross between hosts. A broadcast passes on the largest subtree first, a reduce takes
//! the smallest first. Chunks follow one another along the tree.
//!
//! No deadlock, even with one slot: frames only ever travel away from the root, or only towards it.

use crate::chunking::{Chunking, receive};
use crate::{Rank, Source, Stage, Step, WorldSize};

/// Which rank of which tree.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The rank that the data comes from.
    pub(crate) root: Rank,
    /// The rank whose steps are wanted.
    pub(crate) rank: Rank,
}

/// The neighbours of a rank in the tree.
struct Family {
    /// Nobody above the root.
    parent: Option<Rank>,
    /// The smallest subtree first.
    children: Vec<Rank>,
}

impl Family {
    fn new(world: WorldSize, place: Place) -> Self {
        let distance = world.behind(place.rank, place.root.get()).get();
        let at = |distance| world.ahead(place.root, distance);
        // The bits below a rank's lowest set bit lead to its children; from the root all bits do.
        let child_bits = if distance == 0 {
            u32::BITS
        } else {
            distance.trailing_zeros()
        };
        let children = (0..child_bits)
            .filter_map(|bit| distance.checked_add(1 << bit))
            .filter(|&child| child < world.get())
            .map(at)
            .collect();
        // Clears the lowest set bit; the root has none and no parent.
        let parent = distance.checked_sub(1).map(|below| at(distance & below));
        Self { parent, children }
    }
}

pub(crate) fn broadcast(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Family { parent, children } = Family::new(chunking.world_size, place);
    for chunk in chunking.of_buffer() {
        if let Some(peer) = parent {
            steps.extend(receive(peer, chunk));
        }
        // The largest subtree first.
        steps.extend(children.iter().rev().map(|&peer| Step::Put {
            peer,
            source: chunk,
        }));
    }
}

/// A rank folds its own data and its children's, in the order of their distance from the root.
pub(crate) fn reduce(chunking: &Chunking, place: Place, steps: &mut Vec<Step>) {
    let Family { parent, children } = Family::new(chunking.world_size, place);
    let stage = match parent {
        Some(_) => Stage::Partial,
        None => Stage::Final,
    };
    let is_leaf = parent.is_some() && children.is_empty();
    for target in chunking.of_buffer() {
        if !is_leaf {
            steps.extend(children.iter().map(|&peer| Step::Wait { peer }));
            let inboxes = children.iter().map(|&peer| Source::Inbox(peer));
            let sources = std::iter::once(Source::Own).chain(inboxes).collect();
            steps.push(Step::Reduce {
                target,
                sources,
                stage,
            });
            steps.extend(children.iter().map(|&peer| Step::Release { peer }));
        }
        steps.extend(parent.map(|peer| Step::Put {
            peer,
            source: target,
        }));
    }
}
