//! Device memory of every rank of a group.

use bonfire_cuda::Span;
use bonfire_plan::{ElemRange, Rank};

use crate::request::elements::Elements;

/// One range of device memory per rank, or this rank's alone where the others do not reach it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    spans: Vec<Span>,
    own: usize,
}

impl Shared {
    pub(crate) fn of_ranks(spans: Vec<Span>, me: Rank) -> Self {
        assert!(me.index() < spans.len(), "rank {me} of {}", spans.len());
        Self { spans, own: me.index() }
    }

    pub(crate) fn alone(span: Span) -> Self {
        Self { spans: vec![span], own: 0 }
    }

    pub(crate) fn own(&self) -> &Span {
        &self.spans[self.own]
    }

    pub(crate) fn of(&self, rank: Rank) -> &Span {
        &self.spans[rank.index()]
    }

    /// A range of elements, counted from `elements.range.start`, on one rank.
    pub(crate) fn part(&self, rank: Rank, elements: &Elements, range: ElemRange) -> Span {
        elements.range_of(self.of(rank), range)
    }

    pub(crate) fn own_part(&self, elements: &Elements) -> Span {
        elements.part_of(self.own())
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Gives up the memory of the other ranks; the own, if there is any.
    pub(crate) fn close(mut self) -> Option<Span> {
        (!self.spans.is_empty()).then(|| self.spans.swap_remove(self.own))
    }
}
