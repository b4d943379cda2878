//! Pipelines: every schedule is proved or refused, takes the time that its closed form says, and computes the right
//! gradients; every damaged one is refused.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod choice;
mod damage;
mod every_shape;
mod rules;
mod text;
mod times;
mod toy;

use std::num::NonZeroU32;

use bonfire_plan::pipeline::{Action, Kind, PassTimes, Schedule, Shape};
use bonfire_plan::{Rank, WorldSize};

/// A forward pass takes as long as each half of a backward pass.
const EVEN: PassTimes = PassTimes { forward_s: 1.0, input_gradient_s: 1.0, weight_gradient_s: 1.0 };

fn shape(kind: Kind, [ranks, chunks, micro_batches]: [u32; 3]) -> Shape {
    Shape {
        kind,
        ranks: WorldSize::new(ranks).unwrap(),
        chunks: NonZeroU32::new(chunks).unwrap(),
        micro_batches: NonZeroU32::new(micro_batches).unwrap(),
    }
}

/// With ranks, stages on each rank and micro-batches.
fn schedule(kind: Kind, sizes: [u32; 3]) -> Schedule {
    Schedule::new(shape(kind, sizes)).unwrap()
}

/// With messages, sums of gradients, and gathered parameters.
fn complete(schedule: Schedule) -> Schedule {
    schedule.with_messages().unwrap().with_reductions().with_gathers()
}

/// The usual sizes, with as many stages on a rank as the schedule has at least.
fn usual(kind: Kind) -> Schedule {
    let chunks = match kind {
        Kind::Interleaved | Kind::ZeroBubbleV => 2,
        _ => 1,
    };
    schedule(kind, [4, chunks, 8])
}

fn action(text: &str) -> Action {
    text.parse().unwrap()
}

/// Lists of actions, one text for each rank.
fn lists(texts: &[&str]) -> Vec<Vec<Action>> {
    let list = |text: &&str| text.split_whitespace().map(action).collect();
    texts.iter().map(list).collect()
}

fn rank(number: u32) -> Rank {
    Rank::new(number)
}
