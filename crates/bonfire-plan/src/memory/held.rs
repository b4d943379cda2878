//! What a rank holds, by what it is for and by when.

use std::fmt;

use crate::{Bytes, Placement};

/// What a rank holds at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// What the process has without a model.
    pub program: Bytes,
    /// The values of the parameters, those that are frozen included.
    pub parameters: Bytes,
    /// Their gradients, as tensors: on the CPU in the memory of their buckets, which is counted here then.
    pub gradients: Bytes,
    /// What the optimizer keeps for them.
    pub optimizer: Bytes,
    /// What a pass keeps for its backward half, and needs for itself, with those gradients that stay meanwhile.
    pub activations: Bytes,
    /// The rest of the memory in which gradients are sent and micro-batches are added up.
    pub buckets: Bytes,
    /// Parameters that are gathered for their use, and the memory in which they are; a copy of the largest gradient
    /// where it is clipped before the step.
    pub unit: Bytes,
    /// Other ranks' buckets, as far as this rank reads them where they are. It is memory of those ranks, and not in
    /// the [total](Self::total), but the operating system counts it for each process that has seen it.
    pub seen: Bytes,
}

impl Held {
    /// All memory that a rank takes.
    pub fn total(&self) -> Bytes {
        self.classes().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// All memory that the operating system counts for a process on the CPU, which is its resident memory.
    pub fn resident(&self) -> Bytes {
        self.total() + self.seen
    }

    /// Its parts with their names.
    pub fn classes(&self) -> [(&'static str, Bytes); 7] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buckets", self.buckets),
            ("unit", self.unit),
            ("program", self.program),
        ]
    }
}

/// A time at which a rank may hold the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The model is made, and cut where parameters are sharded.
    Start,
    /// The activations of a step are at their most.
    Pass,
    /// The backward pass is over, and all gradients are there.
    Gradients,
    /// The optimizer steps, and updated parameters are gathered.
    Step,
    /// A rank has the whole model, between two steps.
    Whole,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Start => "the model is made",
            Self::Pass => "in a pass",
            Self::Gradients => "after backward",
            Self::Step => "in a step",
            Self::Whole => "with the whole model",
        })
    }
}

/// The memory of the rank that has the most.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankMemory {
    /// How the states lie over the ranks.
    pub placement: Placement,
    /// What it holds, in the order in which it comes to that.
    pub phases: Vec<(Phase, Held)>,
}

impl RankMemory {
    /// When it holds the most, and what.
    pub fn peak(&self) -> (Phase, Held) {
        let most = self.phases.iter().max_by_key(|(_, held)| held.total());
        *most.expect("every training has a start")
    }

    /// The most that the operating system counts for the process. Besides its own memory that is what it has
    /// [seen](Held::seen) of others'.
    pub fn resident(&self) -> Bytes {
        let all = self.phases.iter().map(|(_, held)| held.resident());
        all.max().unwrap_or_default()
    }
}
