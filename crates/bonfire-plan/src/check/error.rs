//! What the verifier found: where, and what is wrong there.

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
        /// The rank whose list has the step.
        rank: Rank,
        /// Its place in the rank's list.
        index: usize,
        /// A copy of the step, for the message.
        step: Step,
        /// The rule of the memory model that it breaks.
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
        /// The rank that puts the frame.
        from: Rank,
        /// The rank whose steps never free the slot.
        to: Rank,
        /// The place of the put in the sender's list.
        index: usize,
        /// The sender's elements that the frame holds.
        source_range: ElemRange,
    },
    /// An output that is not what the collective promises.
    #[error("rank {rank} ends with {flaw} in {range}")]
    Result {
        /// The rank that ends with the wrong output.
        rank: Rank,
        /// The first elements of its output that are wrong.
        range: ElemRange,
        /// What they hold instead of the promised value.
        flaw: Flaw,
    },
    /// Their results may differ in their last bits.
    #[error("ranks {first} and {second} fold {range} in different orders")]
    Divergence {
        /// Always rank 0, which the others are compared with.
        first: Rank,
        /// The lowest rank whose result differs from that one's.
        second: Rank,
        /// The first elements in which the two differ.
        range: ElemRange,
    },
    /// A direct access that no frame orders before the end of the buffer's owner.
    #[error("rank {rank} may still access {range} of rank {owner}'s buffer when that rank is done")]
    LateAccess {
        /// The rank whose step reads or writes.
        rank: Rank,
        /// The rank whose buffer is read or written.
        owner: Rank,
        /// The first elements of that buffer for which this holds.
        range: ElemRange,
    },
    /// A barrier that one rank may pass before another has reached it.
    #[error("rank {rank} leaves the barrier without knowing that rank {missing} has entered")]
    EarlyLeave {
        /// The lowest rank that may leave too early.
        rank: Rank,
        /// The lowest rank of whose entry no frame informs it.
        missing: Rank,
    },
}

/// What is wrong with one step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer is the rank itself, or not a member of the world.
    #[error("rank {peer} is not a peer of this rank")]
    NotAPeer {
        /// The rank that the step sends to or receives from.
        peer: Rank,
    },
    /// A range that ends behind the space of elements.
    #[error("{range} is outside of a buffer of {count} elements")]
    OutOfBounds {
        /// All elements that the step reads or writes.
        range: ElemRange,
        /// Elements in the space that the steps of all ranks address.
        count: usize,
    },
    /// The rank's memory does not hold these elements.
    #[error("{range} is outside of what the rank brings and ends with")]
    OutsideExtent {
        /// The first elements of the step that have no memory.
        range: ElemRange,
    },
    /// A write to what the rank brings, which the collective leaves as it is.
    #[error("{range} is only brought by the rank and must not be written")]
    WritesInput {
        /// The first elements of the step that must stay as they are.
        range: ElemRange,
    },
    /// An access that no frame orders against another to the same elements; one of them writes.
    #[error("rank {other} may access {range} of rank {owner}'s buffer at the same time")]
    Race {
        /// The rank whose access may come before or after this step.
        other: Rank,
        /// The rank whose buffer both accesses touch.
        owner: Rank,
        /// The first elements of the step that are not ordered.
        range: ElemRange,
    },
    /// A source or target of a direct reduce outside the world.
    #[error("rank {rank} is not a member of the world")]
    NotAMember {
        /// A number that is not below the world size.
        rank: Rank,
    },
    /// An empty list of targets in a [`Step::ReduceDirect`].
    #[error("a direct reduce needs at least one target")]
    NoTargets,
    /// A put of more elements than a slot holds.
    #[error("{range} is longer than a slot of {chunk_elems_max} elements")]
    FrameTooLong {
        /// All elements that the step puts.
        range: ElemRange,
        /// The most elements that one frame may hold.
        chunk_elems_max: usize,
    },
    /// A second wait for a peer before the release of its last frame.
    #[error("the frame from rank {peer} that was awaited before is not released")]
    StillHeld {
        /// The rank whose frame is still in use.
        peer: Rank,
    },
    /// A read or a release of a frame that was not waited for.
    #[error("no frame from rank {peer} was waited for")]
    NotAwaited {
        /// The rank whose frame the step reads or releases.
        peer: Rank,
    },
    /// A frame that is written to other elements than those it was put from. In this memory model
    /// an element never changes its place.
    #[error("the frame from rank {peer} holds {sent}, but the target is {target}")]
    FrameMismatch {
        /// The rank that put the frame.
        peer: Rank,
        /// The elements that the frame was put from.
        sent: ElemRange,
        /// The elements that the step would write.
        target: ElemRange,
    },
    /// A frame with data that is released before anything read it.
    #[error("the frame {sent} from rank {peer} was never read")]
    Unread {
        /// The rank that put the frame.
        peer: Rank,
        /// The elements that the frame was put from.
        sent: ElemRange,
    },
    /// An empty list of sources, of frames or of ranks.
    #[error("a reduce needs at least one source")]
    NoSources,
    /// A read of data that was never written, or that the collective leaves unspecified.
    #[error("{range} is read before it is written")]
    Undefined {
        /// The first elements of the step without a value.
        range: ElemRange,
    },
    /// A fold of two operands that both hold the data of one rank.
    #[error("the data of rank {rank} is folded into {range} twice")]
    FoldedTwice {
        /// The lowest rank whose data both operands hold.
        rank: Rank,
        /// The first elements of the step with such operands.
        range: ElemRange,
    },
    /// An operand to which an earlier step applied the final stage.
    #[error("{range} is folded again after its final stage")]
    AlreadyFinal {
        /// The first elements of the step with such an operand.
        range: ElemRange,
    },
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
    Missing {
        /// The lowest rank whose data is not folded in.
        rank: Rank,
    },
    /// A fold of all ranks without a step of [`Stage::Final`](crate::Stage::Final).
    #[error("a fold whose final stage was not applied")]
    NotFinal,
    /// A value other than one rank's data, unchanged, where that is promised.
    #[error("something made from the data of ranks {found:?} instead of rank {owner}'s data")]
    NotTheOwners {
        /// The rank whose data belongs there.
        owner: Rank,
        /// All ranks whose data the value is made from, ascending.
        found: Vec<Rank>,
    },
}

/// A rank that cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// The rank whose list is not finished.
    pub rank: Rank,
    /// The place in its list of the step that blocks.
    pub index: usize,
    /// The frame or the slot that never comes.
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
