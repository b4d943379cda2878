//! Device memory of every rank of a group.

use bonfire_cuda::Span;
use bonfire_plan::Rank;

/// One range of device memory per rank, or this rank's alone where the others do not reach it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// By rank, or one.
    spans: Vec<Span>,
    /// Where this rank's is.
    own: usize,
}

impl Shared {
    /// Of all ranks, in their order.
    pub(super) fn of_ranks(spans: Vec<Span>, me: Rank) -> Self {
        assert!(me.index() < spans.len(), "rank {me} of {}", spans.len());
        Self {
            spans,
            own: me.index(),
        }
    }

    /// Only this rank's.
    pub(super) fn alone(span: Span) -> Self {
        Self {
            spans: vec![span],
            own: 0,
        }
    }

    /// This rank's.
    pub(super) fn own(&self) -> &Span {
        &self.spans[self.own]
    }

    /// A rank's.
    pub(super) fn of(&self, rank: Rank) -> &Span {
        &self.spans[rank.index()]
    }

    /// All of them.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Leaves nothing behind.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Gives up the memory of the other ranks; the own, if there is any.
    pub(super) fn close(mut self) -> Option<Span> {
        (!self.spans.is_empty()).then(|| self.spans.swap_remove(self.own))
    }
}
