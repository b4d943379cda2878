//! What is known of a schedule without making it. With p ranks, m micro-batches, v stages on each rank, and
//! F, I, W the seconds of a micro-batch on one rank, over all of its stages:
//!
//! | schedule | makespan | activations held on rank r | source |
//! |---|---|---|---|
//! | GPipe | (m + p - 1)(F + I + W) | m | Huang et al. 2018, arXiv 1811.06965 |
//! | 1F1B | the same | min(p - r, m) | Narayanan et al. 2021, arXiv 2104.04473, section 2.2 |
//! | interleaved | (m + (p - 1)/v)(F + I + W) | (v - 1) k + 2 (p - 1 - r) + 1, at most v m | the same |
//! | ZB-H1, F = I = W | (3 m + p - 1) F | min(p, m) | Qi et al. 2023, arXiv 2401.10241, section 3 |
//! | ZBV, F = I = W | (3 m + (p - 1)/2) F | 2 p | the same, section 6 |
//!
//! An activation is that of one stage, of which v are on a rank; k micro-batches are a round, p of them where p
//! divides m. The makespans hold with messages that take no time. The papers give them for micro-batches that fill
//! the pipeline. What the functions say for fewer is our own, and was checked against the simulator for p up to 8
//! and m up to 17.

use super::action::PassTimes;
use super::kind::Kind;
use super::shape::Shape;
use crate::Rank;

impl Shape {
    /// The most activations of a stage that a rank holds at a time; of a shape that is possible.
    pub fn live_max(&self, rank: Rank) -> u32 {
        let (ranks, micro_batches) = (self.ranks.get(), self.micro_batches.get());
        match self.kind {
            // The warm-up, and the forward pass in front of the first backward pass.
            Kind::GPipe | Kind::OneForwardOneBackward | Kind::Interleaved => {
                (self.warm_up(rank) + 1).min(micro_batches * self.chunks.get())
            }
            // A weight gradient comes as many micro-batches late as the rank is far from the first.
            Kind::ZeroBubbleH1 => ranks.min(micro_batches),
            // The near stage fills up to the turn, and the far one to the rank's first backward pass.
            Kind::ZeroBubbleV => {
                (2 * ranks - 1 - rank.get()).min(micro_batches)
                    + (rank.get() + 1).min(micro_batches)
            }
        }
    }

    /// The seconds of a step whose messages take no time, with these times of a rank's layers; `None` where no
    /// closed form is known: zero-bubble schedules whose three passes do not take the same time.
    pub fn makespan_s(&self, rank: PassTimes) -> Option<f64> {
        let (forward_s, input_s) = (rank.forward_s, rank.input_gradient_s);
        let all_s = forward_s + input_s + rank.weight_gradient_s;
        let is_even = forward_s == input_s && input_s == rank.weight_gradient_s;
        let (p, m) = (f64::from(self.ranks.get()), f64::from(self.micro_batches.get()));
        let v = f64::from(self.chunks.get());
        match self.kind {
            Kind::GPipe | Kind::OneForwardOneBackward => Some((m + p - 1.0) * all_s),
            // Fewer micro-batches than ranks change places with them.
            Kind::Interleaved => Some((m.max(p) + (m.min(p) - 1.0) / v) * all_s),
            Kind::ZeroBubbleH1 => is_even.then(|| (2.0 * m + p - 1.0 + m.max(p)) * forward_s),
            // Limited by the work of a rank, or by the way of the last micro-batch.
            Kind::ZeroBubbleV => is_even.then(|| {
                let (work, way) = (3.0 * m + (p - 1.0) / 2.0, 2.0 * m + 2.0 * p - 1.0);
                work.max(way) * forward_s
            }),
        }
    }
}
