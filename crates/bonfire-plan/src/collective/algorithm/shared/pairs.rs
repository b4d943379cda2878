//! Frames to one rank and from another, mostly the same: a transfer, and an exchange.
//!
//! No deadlock between two ranks, even with one slot: order all work by chunk index. A put waits only for a release
//! of an earlier index, a wait only for a put of its own index, which comes first on both sides.

use super::chunking::{Chunking, receive};
use crate::{ElemRange, Rank, Step};

#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    pub(crate) to: Rank,
    pub(crate) from: Rank,
    pub(crate) outgoing: ElemRange,
    pub(crate) incoming: ElemRange,
}

impl Meeting {
    pub(crate) fn with(peer: Rank, outgoing: ElemRange, incoming: ElemRange) -> Self {
        Self { to: peer, from: peer, outgoing, incoming }
    }
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
    let peer = meeting.from;
    exchange_with(chunking, meeting, steps, |target| Step::Copy { peer, target });
}

/// As [`exchange`], where `take` says what is done with each chunk that arrives. The ranges may differ in their number
/// of chunks.
pub(crate) fn exchange_with(
    chunking: &Chunking,
    meeting: Meeting,
    steps: &mut Vec<Step>,
    take: impl Fn(ElemRange) -> Step,
) {
    let (to, peer) = (meeting.to, meeting.from);
    let mut outgoing = chunking.of(meeting.outgoing);
    let mut incoming = chunking.of(meeting.incoming);
    for _ in 0..outgoing.len().max(incoming.len()) {
        steps.extend(outgoing.next().map(|source| Step::Put { peer: to, source }));
        if let Some(target) = incoming.next() {
            steps.extend([Step::Wait { peer }, take(target), Step::Release { peer }]);
        }
    }
}
