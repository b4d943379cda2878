//! The order of the passes on a rank, for each kind of schedule.
//!
//! GPipe, 1F1B, interleaved and ZB-H1 are one loop. A rank begins with some forward passes (its warm-up), then
//! alternates a forward and a backward pass while there are forward passes, and ends with the backward passes that
//! are left. The warm-up is all that distinguishes the first three; ZB-H1 splits the backward pass, and rank r puts a
//! weight gradient r input gradients behind its own.

use super::action::{Compute, Pass};
use super::kind::Kind;
use super::shape::Shape;
use crate::Rank;

/// The passes of a rank, of a shape that is possible.
pub(super) fn passes(shape: &Shape, rank: Rank) -> Vec<Compute> {
    let (ranks, micro_batches) = (shape.ranks.get(), shape.micro_batches.get());
    assert!(rank.get() < ranks, "rank {rank} of {ranks}");
    if shape.kind == Kind::ZeroBubbleV {
        return zero_bubble_v(ranks, rank.get(), micro_batches);
    }
    let warm_up = shape.warm_up(rank);
    let split = (shape.kind == Kind::ZeroBubbleH1).then_some(rank.get());
    let count = micro_batches * shape.chunks.get();
    let mut passes = Vec::with_capacity(3 * count as usize);
    for turn in 0..count + warm_up {
        if turn < count {
            passes.push(nth(shape, rank, Pass::Forward, turn));
        }
        let Some(backward) = turn.checked_sub(warm_up) else {
            continue;
        };
        match split {
            None => passes.push(nth(shape, rank, Pass::Backward, backward)),
            Some(delay) => {
                passes.push(nth(shape, rank, Pass::InputGradient, backward));
                if let Some(weight) = backward.checked_sub(delay) {
                    passes.push(nth(shape, rank, Pass::WeightGradient, weight));
                }
            }
        }
    }
    let behind = split.unwrap_or(0).min(count);
    let left = count - behind..count;
    passes.extend(left.map(|weight| nth(shape, rank, Pass::WeightGradient, weight)));
    passes
}

/// The n-th pass of a kind on a rank: a round of micro-batches through one stage, then through the rank's next
/// one, which in backward passes is the one in front.
fn nth(shape: &Shape, rank: Rank, pass: Pass, n: u32) -> Compute {
    let (round, chunks) = (shape.round(), shape.chunks.get());
    let chunk = n / round % chunks;
    let chunk = match pass {
        Pass::Forward => chunk,
        _ => chunks - 1 - chunk,
    };
    Compute {
        pass,
        stage: chunk * shape.ranks.get() + rank.get(),
        micro_batch: n / (round * chunks) * round + n % round,
    }
}

impl Shape {
    /// Forward passes of a rank in front of the pair of a forward and a backward pass; not of ZBV.
    pub(super) fn warm_up(&self, rank: Rank) -> u32 {
        let behind = self.ranks.get() - 1 - rank.get();
        let micro_batches = self.micro_batches.get();
        let wanted = match self.kind {
            Kind::GPipe => micro_batches,
            Kind::Interleaved => (self.chunks.get() - 1) * self.round() + 2 * behind,
            _ => behind,
        };
        wanted.min(micro_batches * self.chunks.get())
    }
}

/// ZBV as in the paper's appendix and in PyTorch: written for as many micro-batches as fill the pipeline; those
/// that are too many are left out.
fn zero_bubble_v(ranks: u32, rank: u32, micro_batches: u32) -> Vec<Compute> {
    use Pass::{Forward, InputGradient, WeightGradient};
    let count = micro_batches.max(2 * ranks - 1);
    let mut near = Lane::of(rank);
    let mut far = Lane::of(2 * ranks - 1 - rank);
    let mut all = Vec::new();
    // Micro-batches come down to the far stage.
    all.extend((0..2 * (ranks - rank) - 1).map(|_| near.next(Forward)));
    for _ in 0..rank {
        all.extend([far.next(Forward), near.next(Forward)]);
    }
    for _ in rank..ranks {
        all.extend([Forward, InputGradient, WeightGradient].map(|pass| far.next(pass)));
    }
    // Both stages in turn.
    while far.forward < near.forward || near.forward < count {
        if near.forward < count {
            all.push(near.next(Forward));
        }
        all.extend([InputGradient, WeightGradient].map(|pass| near.next(pass)));
        all.extend([Forward, InputGradient, WeightGradient].map(|pass| far.next(pass)));
    }
    // Input gradients first, as others wait for them.
    for _ in 0..rank {
        all.extend([near.next(InputGradient), far.next(InputGradient)]);
    }
    for _ in rank..ranks {
        all.extend([InputGradient, WeightGradient].map(|pass| near.next(pass)));
    }
    for lane in [&mut far, &mut near] {
        let left = lane.weight_gradient..lane.input_gradient;
        all.extend(left.map(|_| lane.next(WeightGradient)));
    }
    all.retain(|compute| compute.micro_batch < micro_batches);
    all
}

/// The passes over one stage, as far as they are planned.
#[derive(Default)]
struct Lane {
    stage: u32,
    forward: u32,
    input_gradient: u32,
    weight_gradient: u32,
}

impl Lane {
    fn of(stage: u32) -> Self {
        Self { stage, ..Self::default() }
    }

    fn next(&mut self, pass: Pass) -> Compute {
        let counter = match pass {
            Pass::Forward => &mut self.forward,
            Pass::InputGradient | Pass::Backward => &mut self.input_gradient,
            Pass::WeightGradient => &mut self.weight_gradient,
        };
        *counter += 1;
        Compute { pass, stage: self.stage, micro_batch: *counter - 1 }
    }
}
