//! DeepSpeed's learning rates, as functions of the step.
//!
//! The formulas are those of `runtime/lr_schedules.py`. DeepSpeed's engine calls the scheduler after the optimizer: the
//! first step has the rate that the scheduler begins with, and the one after it that of `last_batch_iteration = 0`.

use std::f64::consts::PI;

/// The curve of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmupShape {
    /// Rises with the logarithm of the step.
    Log,
    /// Rises linearly with the step.
    Linear,
}

/// A warm-up of some steps; fewer than 2 count as 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// The number of warm-up steps.
    pub steps: u64,
    /// The curve of a warm-up.
    pub shape: WarmupShape,
}

/// A learning-rate schedule of DeepSpeed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// `WarmupLR`: from `min` to `max`, then constant.
    Warmup {
        /// The rate of the first step.
        min: f64,
        /// The rate after the warm-up.
        max: f64,
        /// The steps and the curve between them.
        warmup: Warmup,
    },
    /// `WarmupDecayLR`: the same, and down to `min` in a line until `total` steps are done.
    WarmupDecay {
        /// The first and the last rate.
        min: f64,
        /// The rate after the warm-up.
        max: f64,
        /// The steps and the curve between them.
        warmup: Warmup,
        /// The number of all steps.
        total: u64,
    },
    /// `WarmupCosineLR`: fractions of the optimizer's rate, down half a cosine.
    WarmupCosine {
        /// The learning rate of the optimizer.
        rate: f64,
        /// The first rate, as a fraction of `rate`.
        first: f64,
        /// The last rate, as a fraction of `rate`.
        last: f64,
        /// The warm-up between fractions 0 and 1.
        warmup: Warmup,
        /// The number of all steps.
        total: u64,
    },
    /// `OneCycle`: up, down, and then decaying.
    OneCycle(OneCycle),
    /// `LRRangeTest`: a rate that rises without end.
    RangeTest {
        /// The rate of the first step.
        min: f64,
        /// The number of steps in an interval.
        step_size: u64,
        /// The increase of an interval, as a fraction of the first rate.
        step_rate: f64,
        /// Raises the rate once an interval rather than with every step.
        staircase: bool,
    },
}

/// The parameters of DeepSpeed's `OneCycle` schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    /// The rates between which it goes up and down.
    pub rates: (f64, f64),
    /// The decay afterwards; 0 keeps the rate.
    pub decay_rate: f64,
    /// Numbers of steps up, and down.
    pub steps: (u64, u64),
    /// Numbers of stairs up, and down; 0 is none.
    pub stairs: (u64, u64),
    /// Steps of an interval afterwards; 0 keeps the rate.
    pub decay_steps: u64,
}

impl Warmup {
    /// The progress of the warm-up, from 0 to 1; `None` when it is over.
    fn progress(self, step: u64) -> Option<f64> {
        let steps = self.steps.max(2);
        (step < steps).then(|| match self.shape {
            WarmupShape::Log => (step as f64 + 1.0).ln() * (1.0 / (steps as f64).ln()),
            WarmupShape::Linear => step as f64 / steps as f64,
        })
    }
}

impl Schedule {
    /// Returns the learning rate of a step of the optimizer, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        match (step.checked_sub(1), *self) {
            (Some(iteration), _) => self.rate_of(iteration),
            (None, Self::Warmup { min, .. } | Self::WarmupDecay { min, .. }) => min,
            (None, Self::RangeTest { min, .. }) => min,
            (None, Self::WarmupCosine { .. }) => 0.0,
            (None, Self::OneCycle(cycle)) => cycle.rates.0,
        }
    }

    /// Returns the highest rate; for `LRRangeTest`, which has none, the first.
    pub fn highest(&self) -> f64 {
        match self {
            Self::Warmup { max, .. } | Self::WarmupDecay { max, .. } => *max,
            Self::WarmupCosine { rate, .. } => *rate,
            Self::OneCycle(cycle) => cycle.rates.1,
            Self::RangeTest { min, .. } => *min,
        }
    }

    pub(crate) fn scaled(mut self, factor: f64) -> Self {
        let rates: &mut [&mut f64] = match &mut self {
            Self::Warmup { min, max, .. } | Self::WarmupDecay { min, max, .. } => &mut [min, max],
            Self::WarmupCosine { rate, .. } => &mut [rate],
            Self::OneCycle(cycle) => &mut [&mut cycle.rates.0, &mut cycle.rates.1],
            Self::RangeTest { min, .. } => &mut [min],
        };
        rates.iter_mut().for_each(|rate| **rate *= factor);
        self
    }

    /// The rate at DeepSpeed's `last_batch_iteration`.
    fn rate_of(&self, step: u64) -> f64 {
        match *self {
            Self::Warmup { min, max, warmup } => {
                min + (max - min) * warmup.progress(step).unwrap_or(1.0)
            }
            Self::WarmupDecay { min, max, warmup, total } => {
                let left = total as f64 - step as f64;
                let decays = total as f64 - warmup.steps.max(2) as f64;
                let decay = || (left / decays.max(1.0)).max(0.0);
                min + (max - min) * warmup.progress(step).unwrap_or_else(decay)
            }
            Self::WarmupCosine { rate, first, last, warmup, total } => {
                let ratio = match warmup.progress(step) {
                    Some(progress) => first + progress * (1.0 - first),
                    None => {
                        let done = step as f64 - warmup.steps.max(2) as f64 + 1.0;
                        let all = (total as f64 - warmup.steps.max(2) as f64).max(1.0);
                        let cosine = (1.0 + (PI * (done / all).min(1.0)).cos()) / 2.0;
                        (last + (1.0 - last) * cosine).max(0.0)
                    }
                };
                rate * ratio
            }
            Self::OneCycle(cycle) => cycle.rate(step),
            Self::RangeTest { min, step_size, step_rate, staircase } => {
                let interval = (step as f64 + 1.0) / step_size as f64;
                let interval = if staircase { interval.floor() } else { interval };
                min * (1.0 + step_rate * interval)
            }
        }
    }
}

impl OneCycle {
    fn total(&self) -> f64 {
        self.steps.0 as f64 + self.steps.1 as f64
    }

    /// The distance from the lower end, from 0 to 1.
    fn scale(&self, step: u64) -> f64 {
        let (total, first) = (self.total(), self.steps.0 as f64);
        let (iteration, ratio) = (step as f64 + 1.0, first / self.total());
        let cycle = (1.0 + iteration / total).floor();
        let place = 1.0 + iteration / total - cycle;
        let (scale, stairs) = if place <= ratio {
            (place / ratio, self.stairs.0)
        } else {
            ((place - 1.0) / (ratio - 1.0), self.stairs.1)
        };
        if stairs == 0 {
            return scale;
        }
        let (iteration, stairs) = (iteration % total, stairs as f64);
        let stair = if iteration <= first {
            iteration * stairs / first
        } else {
            (total - iteration) * stairs / self.steps.1 as f64
        };
        stair.floor() / stairs
    }

    /// Intervals since the cycle, if it is over.
    fn decayed(&self, step: u64) -> Option<f64> {
        let past = step as f64 - self.total();
        (past >= 0.0).then(|| (past + 1.0) / self.decay_steps as f64)
    }

    fn rate(&self, step: u64) -> f64 {
        let (low, high) = self.rates;
        match self.decayed(step) {
            None => low + (high - low) * self.scale(step),
            Some(_) if self.decay_steps == 0 || self.decay_rate == 0.0 => low,
            Some(intervals) => low / (1.0 + self.decay_rate * intervals),
        }
    }
}
