//! Two ranks: a transfer from one to the other, and an exchange.
//!
//! No deadlock, even with one slot: order all work by chunk index. A put waits only for a release
//! of an earlier index, a wait only for a put of its own index, which comes first on both sides.

use super::chunking::{Chunking, receive};
use crate::{ElemRange, Rank, Step};

#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    pub(crate) peer: Rank,
    pub(crate) outgoing: ElemRange,
    pub(crate) incoming: ElemRange,
}

pub(crate) fn send(chunking: &Chunking, peer: Rank, range: ElemRange, steps: &mut Vec<Step>) {
    let put = |source| Step::Put { peer, source };
    steps.extend(chunking.of(range).map(put));
}

pub(crate) fn receive_all(
    chunking: &Chunking,
    peer: Rank,
    range: ElemRange,
    steps: &mut Vec<Step>,
) {
    let chunks = chunking.of(range);
    steps.extend(chunks.flat_map(|target| receive(peer, target)));
}

/// Both ways at once. Every chunk leaves before the one with its index arrives, so that ranges of
/// equal length can be the same memory.
pub(crate) fn exchange(chunking: &Chunking, meeting: Meeting, steps: &mut Vec<Step>) {
    let peer = meeting.peer;
    let copy = |target| Step::Copy { peer, target };
    exchange_with(chunking, meeting, steps, copy);
}

/// As [`exchange`], where `take` says what is done with each chunk that arrives.
pub(crate) fn exchange_with(
    chunking: &Chunking,
    meeting: Meeting,
    steps: &mut Vec<Step>,
    take: impl Fn(ElemRange) -> Step,
) {
    let peer = meeting.peer;
    let mut outgoing = chunking.of(meeting.outgoing);
    let mut incoming = chunking.of(meeting.incoming);
    for _ in 0..outgoing.len().max(incoming.len()) {
        steps.extend(outgoing.next().map(|source| Step::Put { peer, source }));
        if let Some(target) = incoming.next() {
            steps.extend([Step::Wait { peer }, take(target), Step::Release { peer }]);
        }
    }
}
