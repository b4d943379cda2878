//! The times of a pipeline's step.

use std::time::{Duration, Instant};

use bonfire_plan::pipeline::{Compute, Pass, PassTimes, Span};

/// The times of a step: passes, busy time and makespan.
///
/// If a device computes asynchronously, a pass ends when its output has been read from the device; the rest counts as
/// part of a later pass.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PipelineTiming {
    /// The passes of this rank, in order, in seconds from the start of its step.
    pub passes: Vec<Span>,
    /// The computation time of each rank.
    pub busy: Vec<Duration>,
    /// From the start of the step to the end of the last pass of any rank.
    pub makespan: Duration,
    /// The passes over all layers of a rank for one micro-batch, in the mean over ranks and micro-batches:
    /// [`choose`](bonfire_plan::pipeline::choose) simulates other schedules with them. Half of an unsplit backward
    /// pass counts as the gradient of the input.
    pub times: PassTimes,
}

impl PipelineTiming {
    /// Returns the part of the ranks' time in which they computed nothing, from 0 to 1, as the simulator of
    /// `bonfire-plan` has it: 1 - busy / (ranks x makespan).
    pub fn bubble(&self) -> f64 {
        let all_s = self.makespan.as_secs_f64() * self.busy.len() as f64;
        if all_s > 0.0 {
            1.0 - self.busy.iter().sum::<Duration>().as_secs_f64() / all_s
        } else {
            0.0
        }
    }
}

#[derive(Debug)]
pub(super) struct Stopwatch {
    start: Instant,
    pub(super) passes: Vec<Span>,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), passes: Vec::new() }
    }

    pub(super) fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub(super) fn note(&mut self, compute: Compute, start_s: f64) {
        self.passes.push(Span { compute, start_s, end_s: self.now_s() });
    }

    /// Seconds that this rank computed forward passes, gradients of inputs and those of weights, and the end of its
    /// last pass.
    pub(super) fn totals_s(&self) -> [f64; 4] {
        let (mut forward_s, mut input_s, mut weight_s) = (0.0, 0.0, 0.0);
        for span in &self.passes {
            let took_s = span.end_s - span.start_s;
            match span.compute.pass {
                Pass::Forward => forward_s += took_s,
                Pass::InputGradient => input_s += took_s,
                Pass::WeightGradient => weight_s += took_s,
                Pass::Backward => {
                    input_s += took_s / 2.0;
                    weight_s += took_s / 2.0;
                }
            }
        }
        let end_s = self.passes.last().map_or(0.0, |span| span.end_s);
        [forward_s, input_s, weight_s, end_s]
    }
}
