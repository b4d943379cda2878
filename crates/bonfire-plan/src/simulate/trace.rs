//! What a simulation writes down while it runs: enough to find out afterwards what each rank waited
//! for, and on request what everyone did when.

use crate::Rank;

use super::Activity;

/// A frame, or the data of a direct load or write, on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transit {
    pub(super) link: u32,
    /// The step that set it going, counted over all ranks.
    pub(super) op: u32,
    /// When it was handed to the sender's port; of a load, when it was asked for.
    pub(super) issued_s: f64,
    pub(super) arrived_s: f64,
    /// Whether it has passed one of the two network cards on its way.
    pub(super) is_halfway: bool,
    /// How much longer the port out, and the port in, took because of others.
    pub(super) queued_out_s: f32,
    pub(super) queued_in_s: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Arrival(u32),
    /// The return of a slot; an index into the list of returns.
    Slot(u32),
}

/// A rank continues with the step at which it was blocked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wake {
    pub(super) op: u32,
    pub(super) cause: Cause,
}

/// A slot that a sender waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotReturn {
    pub(super) time_s: f64,
    /// The release, counted over all ranks.
    pub(super) op: u32,
    pub(super) link: u32,
}

/// A row of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// What one rank does over time.
    Rank(Rank),
    /// What leaves a host's network card.
    NicOut(u32),
    /// What reaches a host's network card.
    NicIn(u32),
}

/// A stretch of time in a timeline, in seconds from the start.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// The rank, or the direction of a network card, that was busy.
    pub lane: Lane,
    /// What it did; of a network card always [`Activity::Transfer`].
    pub activity: Activity,
    /// The other rank, where there is one; of a network card, the receiver of the frame that ended then.
    pub peer: Option<Rank>,
    /// The bytes that were sent, copied or folded; of a network card, of all frames that passed; 0 for a wait.
    pub bytes: u64,
    /// When it began; spans of one lane do not overlap.
    pub start_s: f64,
    /// When it ended, always after it began.
    pub end_s: f64,
}
