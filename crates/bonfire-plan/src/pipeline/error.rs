//! Why a schedule cannot be made, and what is wrong with one that was.

use std::fmt;

use super::action::Action;
use super::kind::Kind;
use crate::Rank;
use crate::types::joined;

/// A shape that no schedule has. The caller is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A number of stages on each rank that the kind does not have.
    #[error("{kind} has {} on each rank, not {chunks}", stages_of(*kind))]
    Chunks {
        /// The schedule that was asked for.
        kind: Kind,
        /// Stages on each rank that the shape asks for.
        chunks: u32,
    },
    /// Micro-batches that an interleaved schedule cannot divide into equal rounds.
    #[error(
        "{micro_batches} micro-batches are not {rounds} equal rounds; take a multiple of the number of \
         ranks, or fewer than twice as many"
    )]
    UnevenRounds {
        /// Micro-batches of a step that the shape asks for.
        micro_batches: u32,
        /// The rounds, as many as whole times the ranks go into the micro-batches.
        rounds: u32,
    },
    /// More passes than any training needs.
    #[error("the schedule has more than {limit} passes; take fewer micro-batches, ranks or stages")]
    TooLong {
        /// The most passes of all ranks, at three for each stage and micro-batch.
        limit: u64,
    },
}

fn stages_of(kind: Kind) -> &'static str {
    match kind {
        Kind::GPipe | Kind::OneForwardOneBackward | Kind::ZeroBubbleH1 => "1 stage",
        Kind::Interleaved => "2 stages or more",
        Kind::ZeroBubbleV => "2 stages",
    }
}

/// A schedule that must not run. Who wrote it is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// An action that may not be where it is.
    #[error("rank {rank}, action {index} ({action}): {rule}")]
    Action {
        /// The rank whose list has the action.
        rank: Rank,
        /// Its place in the rank's list.
        index: usize,
        /// A copy of the action, for the message.
        action: Action,
        /// The rule that it breaks at that place.
        rule: Rule,
    },
    /// An action that is nowhere, or a release that is nowhere behind the last gather of its stage.
    #[error("rank {rank} never does {action}; add it to the rank's list")]
    Missing {
        /// The rank that holds the stage of the action.
        rank: Rank,
        /// The action that its list must have.
        action: Action,
    },
    /// Messages between two ranks that are not received in the order in which they are sent.
    #[error(
        "rank {source_rank} does {sent} where rank {target_rank} does {received}; \
         let both be in the same order"
    )]
    MessageOrder {
        /// The rank that sends these messages.
        source_rank: Rank,
        /// The rank that receives them in another order.
        target_rank: Rank,
        /// The first send that the receiver expects at another place.
        sent: Action,
        /// The receive that the receiver does at that place.
        received: Action,
    },
    /// Ranks that wait for each other.
    #[error("deadlock: {}; move what is waited for to the front", joined(blocked, "; "))]
    Deadlock {
        /// Every rank that cannot continue.
        blocked: Vec<Blocked>,
    },
    /// Another number of activations than the schedule promises.
    #[error(
        "rank {rank} holds {live} activations at most, where {kind} holds {promised}; \
         let forward passes come {}", if live > promised { "later" } else { "earlier" }
    )]
    Live {
        /// The lowest rank with another number than promised.
        rank: Rank,
        /// The schedule whose closed form gives the promise.
        kind: Kind,
        /// The most activations that the rank's list holds at a time.
        live: u32,
        /// Those of the closed form.
        promised: u32,
    },
}

/// What is wrong with an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rule {
    /// A stage that the schedule does not have.
    #[error("there are {stages} stages, counted from 0")]
    UnknownStage {
        /// Stages of the schedule, on all ranks together.
        stages: u32,
    },
    /// A micro-batch that a step does not have.
    #[error("there are {micro_batches} micro-batches, counted from 0")]
    UnknownMicroBatch {
        /// Micro-batches of a step, the same for all stages.
        micro_batches: u32,
    },
    /// An action in the list of a rank that does not hold its stage.
    #[error("the stage is on rank {owner}; let that rank do it")]
    NotTheOwner {
        /// The rank that holds the stage of the action.
        owner: Rank,
    },
    /// The same action twice, other than a gather or a release.
    #[error("it is done already in action {first}; remove one of them")]
    Repeated {
        /// The place of the first one in the list, from 0.
        first: usize,
    },
    /// A whole backward pass beside a split one.
    #[error("{other} is there, too; let the backward pass be B, or I and W")]
    TwoBackwards {
        /// The whole backward pass; the action itself is a half.
        other: Action,
    },
    /// A backward pass, whole or of the input, in front of its forward pass.
    #[error("it must come after the forward pass {0}")]
    BeforeForward(Action),
    /// A weight gradient in front of its input gradient.
    #[error("it must come after the input gradient {0}")]
    BeforeInputGradient(Action),
    /// A pass in front of that of the neighbouring stage on the same rank, from which it has its input.
    #[error("it must come after {0}, whose result it takes")]
    BeforeNeighbour(Action),
    /// A pass in front of the message with its input.
    #[error("it must come after {0}")]
    BeforeReceive(Action),
    /// A message in front of the pass that makes what it carries.
    #[error("it must come after {0}, whose result it sends")]
    BeforeResult(Action),
    /// A sum of gradients in front of the last weight gradient.
    #[error("it must come after {0}, which adds to the gradients")]
    BeforeGradient(Action),
    /// A message between stages of one rank, or behind the last stage.
    #[error("no other rank is on that side of the stage; remove it")]
    NoPeer,
    /// A pass over a stage whose parameters are not there.
    #[error("the stage is not gathered; gather it first")]
    NotGathered,
    /// A second gather of a stage without a release in between.
    #[error("the stage is gathered already; release it first, or remove this")]
    AlreadyGathered,
}

/// A rank that cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// The rank whose list is not finished.
    pub rank: Rank,
    /// The place in its list of the action that blocks.
    pub index: usize,
    /// The action at that place, which cannot begin.
    pub action: Action,
    /// The pass that makes its input, or the other end of its message.
    pub needs: Action,
}

impl fmt::Display for Blocked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, index, .. } = self;
        let (action, needs) = (self.action, self.needs);
        write!(formatter, "rank {rank} waits in action {index} ({action}) for {needs}")
    }
}
