//! What one rank does next.
//!
//! # Memory model
//!
//! Every rank has one data buffer, worked on in place. For each ordered pair of ranks there is a
//! queue of frames, first in first out, with a fixed number of slots (one or more), each of which
//! holds up to `chunk_elems_max` elements. The queue from a peer to this rank is that peer's
//! *inbox*. Frames carry no address: the receiver knows from its own steps what the next one is.
//!
//! Only [`Step::ReduceDirect`] reaches into the data buffers of other ranks. Frames order it: what a
//! rank did before a [`Step::Put`] comes before what its peer does after the [`Step::Wait`] for that
//! frame. A plan may not leave any two accesses to an element unordered if one of them writes.

use std::fmt;

use crate::types::joined;
use crate::{ElemRange, Rank};

/// One step of a rank's list. Steps run one after the other, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Copies `source` of this rank's data into the next free slot of this rank's inbox at
    /// `peer`, and publishes it. Blocks while no slot is free. An empty range publishes an empty
    /// frame. When it returns, `source` may be written again.
    Put {
        /// The rank that the frame is sent to.
        peer: Rank,
        /// At most `chunk_elems_max` elements of this rank's data.
        source: ElemRange,
    },
    /// Blocks until the oldest unreleased frame from `peer` is there. It stays readable until
    /// [`Step::Release`]; there is exactly one `Wait` for each `Release`.
    Wait {
        /// The rank that puts the frame; never this one.
        peer: Rank,
    },
    /// Folds `sources` from left to right and writes the result to `target` of this rank's data.
    /// The fold runs in the accumulation type and is rounded once, at the end.
    Reduce {
        /// The range of this rank's data that is written, and read by [`Source::Own`].
        target: ElemRange,
        /// At least one.
        sources: Box<[Source]>,
        /// Whether this step completes the fold.
        stage: Stage,
    },
    /// Copies the frame awaited from `peer` to `target` of this rank's data, which is as long as the frame.
    Copy {
        /// The rank that put the frame.
        peer: Rank,
        /// The same elements that the frame was put from.
        target: ElemRange,
    },
    /// Frees the slot of the frame awaited from `peer`.
    Release {
        /// The rank that may use the slot for another frame.
        peer: Rank,
    },
    /// Folds `range` of the buffers of `sources` from left to right, as [`Step::Reduce`] does, and writes the result
    /// to the same range of the buffers of `targets`. This rank may be among both; one source of a partial fold makes
    /// it a copy. No frame is involved: the plan orders this step against every other that touches the same elements.
    ReduceDirect {
        /// The same elements in the buffers of all sources and targets.
        range: ElemRange,
        /// At least one.
        sources: Box<[Rank]>,
        /// At least one.
        targets: Box<[Rank]>,
        /// Whether this step completes the fold.
        stage: Stage,
    },
}

/// One operand of a [`Step::Reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The target range of this rank's own data, as it is before the step.
    Own,
    /// The frame awaited from this peer; as long as the target.
    Inbox(Rank),
}

/// Whether a [`Step::Reduce`] completes the fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// More ranks are still to be folded in.
    Partial,
    /// Every rank is folded in. A mean is divided by the world size now, before rounding.
    Final,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { peer, source } => write!(formatter, "put {source} -> rank {peer}"),
            Self::Wait { peer } => write!(formatter, "wait rank {peer}"),
            Self::Reduce { target, sources, stage } => {
                let (sources, stage) = (joined(sources, " + "), stage.suffix());
                write!(formatter, "reduce {target} = {sources}{stage}")
            }
            Self::Copy { peer, target } => write!(formatter, "copy {target} = inbox[{peer}]"),
            Self::Release { peer } => write!(formatter, "release rank {peer}"),
            Self::ReduceDirect { range, sources, targets, stage } => {
                let (sources, targets) = (joined(sources, " + "), joined(targets, ", "));
                let stage = stage.suffix();
                write!(formatter, "reduce {range} of ranks {targets} = ranks {sources}{stage}")
            }
        }
    }
}

impl Stage {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Partial => "",
            Self::Final => ", final",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => formatter.write_str("own"),
            Self::Inbox(peer) => write!(formatter, "inbox[{peer}]"),
        }
    }
}
