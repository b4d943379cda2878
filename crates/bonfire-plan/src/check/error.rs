//! What the verifier found: where, and what is wrong there.

#![allow(missing_docs, reason = "fields are named for what they hold")]

use std::fmt;

use crate::types::joined;
use crate::{ElemRange, Rank, Step};

/// A plan that must not run. The builder of the plan is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A step that may not be taken.
    #[error("rank {rank}, step {index} ({step}): {fault}")]
    Step {
        rank: Rank,
        /// Its place in the rank's list.
        index: usize,
        step: Step,
        fault: Fault,
    },
    /// Ranks that wait for each other, or for what never comes.
    #[error("deadlock: {}", joined(blocked, "; "))]
    Deadlock {
        /// Every rank that cannot continue.
        blocked: Vec<Blocked>,
    },
    /// A frame that is still in its slot when every rank is done.
    #[error(
        "rank {to} never releases the frame {source_range} that rank {from} puts in step {index}"
    )]
    Unreleased {
        from: Rank,
        to: Rank,
        /// The place of the put in the sender's list.
        index: usize,
        source_range: ElemRange,
    },
    #[error("rank {rank} ends with {flaw} in {range}")]
    Result { rank: Rank, range: ElemRange, flaw: Flaw },
    /// Their results may differ in their last bits.
    #[error("ranks {first} and {second} fold {range} in different orders")]
    Divergence { first: Rank, second: Rank, range: ElemRange },
    #[error("rank {rank} may still access {range} of rank {owner}'s buffer when that rank is done")]
    LateAccess { rank: Rank, owner: Rank, range: ElemRange },
    #[error("rank {rank} leaves the barrier without knowing that rank {missing} has entered")]
    EarlyLeave { rank: Rank, missing: Rank },
}

/// What is wrong with one step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer is the rank itself, or not a member of the world.
    #[error("rank {peer} is not a peer of this rank")]
    NotAPeer { peer: Rank },
    #[error("{range} is outside of a buffer of {count} elements")]
    OutOfBounds { range: ElemRange, count: usize },
    /// The rank's memory does not hold these elements.
    #[error("{range} is outside of what the rank brings and ends with")]
    OutsideExtent { range: ElemRange },
    /// A write to what the rank brings, which the collective leaves as it is.
    #[error("{range} is only brought by the rank and must not be written")]
    WritesInput { range: ElemRange },
    /// An access that no frame orders against another to the same elements; one of them writes.
    #[error("rank {other} may access {range} of rank {owner}'s buffer at the same time")]
    Race { other: Rank, owner: Rank, range: ElemRange },
    #[error("rank {rank} is not a member of the world")]
    NotAMember { rank: Rank },
    #[error("a direct reduce needs at least one target")]
    NoTargets,
    #[error("{range} is longer than a slot of {chunk_elems_max} elements")]
    FrameTooLong { range: ElemRange, chunk_elems_max: usize },
    #[error("the frame from rank {peer} that was awaited before is not released")]
    StillHeld { peer: Rank },
    /// A read or a release of a frame that was not waited for.
    #[error("no frame from rank {peer} was waited for")]
    NotAwaited { peer: Rank },
    /// A frame that is written to other elements than those it was put from. In this memory model
    /// an element never changes its place.
    #[error("the frame from rank {peer} holds {sent}, but the target is {target}")]
    FrameMismatch { peer: Rank, sent: ElemRange, target: ElemRange },
    /// A frame with data that is released before anything read it.
    #[error("the frame {sent} from rank {peer} was never read")]
    Unread { peer: Rank, sent: ElemRange },
    #[error("a reduce needs at least one source")]
    NoSources,
    /// A read of data that was never written, or that the collective leaves unspecified.
    #[error("{range} is read before it is written")]
    Undefined { range: ElemRange },
    #[error("the data of rank {rank} is folded into {range} twice")]
    FoldedTwice { rank: Rank, range: ElemRange },
    #[error("{range} is folded again after its final stage")]
    AlreadyFinal { range: ElemRange },
}

/// What is wrong with a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// Nothing was ever written there.
    #[error("unwritten data")]
    Undefined,
    /// Of several ranks the first.
    #[error("a fold without rank {rank}'s data")]
    Missing { rank: Rank },
    #[error("a fold whose final stage was not applied")]
    NotFinal,
    #[error("something made from the data of ranks {found:?} instead of rank {owner}'s data")]
    NotTheOwners { owner: Rank, found: Vec<Rank> },
}

/// A rank that cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    pub rank: Rank,
    /// The place in its list of the step that blocks.
    pub index: usize,
    pub obstacle: Obstacle,
}

/// What a blocked rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// A frame from this rank.
    FrameFrom(Rank),
    /// A free slot in its inbox at this rank.
    SlotAt(Rank),
}

impl fmt::Display for Blocked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, index, .. } = self;
        write!(formatter, "rank {rank} waits in step {index} for ")?;
        match self.obstacle {
            Obstacle::FrameFrom(peer) => write!(formatter, "a frame from rank {peer}"),
            Obstacle::SlotAt(peer) => write!(formatter, "a free slot at rank {peer}"),
        }
    }
}
