//! The queue of frames from one rank to another, and what the receiver may do with the oldest.

use std::collections::VecDeque;

use super::error::Fault;
use super::expression::Value;
use crate::{ElemRange, Rank};

/// One queue. Its methods are the receiver's; only [`Link::publish`] is the sender's.
#[derive(Default)]
pub(super) struct Link {
    frames: VecDeque<Frame>,
    front: Front,
}

/// What the receiver has done with the oldest frame.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Front {
    #[default]
    NotAwaited,
    Awaited,
    Read,
}

/// What is sent: symbols, and what the verifier needs to know of the sender.
pub(super) struct Frame {
    pub(super) source: ElemRange,
    pub(super) values: Box<[Value]>,
    /// The ranks that the sender knew to have entered.
    pub(super) heard: Vec<u64>,
    /// What the sender knew, for [`Races`](super::races::Races); empty without direct steps.
    pub(super) known: Box<[u32]>,
    pub(super) clock: Clock,
    /// The place of the put in the sender's list.
    pub(super) index: usize,
}

/// How many frames one after the other led here: see [`Cost`](crate::Cost).
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    pub(super) chain: u64,
    pub(super) one_port: u64,
}

impl Clock {
    pub(super) fn later(self, other: Self) -> Self {
        Self { chain: self.chain.max(other.chain), one_port: self.one_port.max(other.one_port) }
    }
}

impl Link {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// The oldest frame, whatever was done with it.
    pub(super) fn front(&self) -> Option<&Frame> {
        self.frames.front()
    }

    pub(super) fn publish(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    /// Makes the oldest frame from `peer` readable; `None` while there is none.
    pub(super) fn wait(&mut self, peer: Rank) -> Result<Option<&Frame>, Fault> {
        if self.front != Front::NotAwaited {
            return Err(Fault::StillHeld { peer });
        }
        let frame = self.frames.front();
        if frame.is_some() {
            self.front = Front::Awaited;
        }
        Ok(frame)
    }

    /// The frame awaited from `peer`, for writing it to `target`.
    pub(super) fn read(&mut self, peer: Rank, target: ElemRange) -> Result<&Frame, Fault> {
        if self.front == Front::NotAwaited {
            return Err(Fault::NotAwaited { peer });
        }
        let frame = self.frames.front();
        let frame = frame.expect("an awaited frame is in the queue");
        let sent = frame.source;
        if sent != target {
            return Err(Fault::FrameMismatch { peer, sent, target });
        }
        self.front = Front::Read;
        Ok(frame)
    }

    pub(super) fn release(&mut self, peer: Rank) -> Result<(), Fault> {
        if self.front == Front::NotAwaited {
            return Err(Fault::NotAwaited { peer });
        }
        let frame = self.frames.pop_front();
        let sent = frame.expect("an awaited frame is in the queue").source;
        if self.front == Front::Awaited && !sent.is_empty() {
            return Err(Fault::Unread { peer, sent });
        }
        self.front = Front::NotAwaited;
        Ok(())
    }
}
