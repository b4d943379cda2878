//! Dissemination barrier: in round k every rank notifies the rank 2^k further round the ring that
//! it, and everyone it knows of, has arrived.
//!
//! After Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988). Frames
//! are empty: their arrival is the message.
//!
//! No deadlock, even with one slot: every round uses another link, and a wait needs only the put of its own round.

use crate::{ElemRange, Rank, Step, WorldSize};

pub(crate) fn barrier(world: WorldSize, rank: Rank, steps: &mut Vec<Step>) {
    let distances = (0..u32::BITS).map(|round| 1 << round);
    for distance in distances.take_while(|&far| far < world.get()) {
        let (to, peer) = (world.ahead(rank, distance), world.behind(rank, distance));
        let source = ElemRange::up_to(0);
        steps.extend([Step::Put { peer: to, source }, Step::Wait { peer }, Step::Release { peer }]);
    }
}
