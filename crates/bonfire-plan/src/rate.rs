//! The learning rate of every step, as a function of its number.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A learning-rate schedule: a warm-up, then a decay. A pure function of the step, so that resuming
/// needs no more than the step; what a step is, a batch or an epoch, is the program's choice.
///
/// ```
/// # mod bonfire { pub mod optim { pub use bonfire_plan::rate::*; } }
/// use bonfire::optim::{Decay, Schedule};
///
/// let schedule = Schedule::constant(0.1)
///     .with_warmup(10)
///     .with_decay(Decay::Cosine { steps: 100, final_factor: 0.01 });
/// assert_eq!(schedule.rate(10), 0.1);
/// assert!((schedule.rate(110) - 0.001).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest rate, reached when the warm-up ends.
    pub peak: f64,
    /// Steps of the warm-up, from which the steps of the decay are counted.
    pub warmup_steps: u64,
    /// The curve of the rate after the warm-up.
    pub decay: Decay,
}

/// The decay of a learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decay {
    /// Keeps the rate at its peak.
    Constant,
    /// Down half a cosine (Loshchilov and Hutter 2017, without restarts).
    Cosine {
        /// The number of steps until the end.
        steps: u64,
        /// The last rate as a fraction of the peak.
        final_factor: f64,
    },
    /// Decays in a straight line.
    Linear {
        /// The number of steps until the end.
        steps: u64,
        /// The last rate as a fraction of the peak.
        final_factor: f64,
    },
    /// Multiplied with a factor at intervals.
    Step {
        /// The interval in steps, at least 1.
        every: u64,
        /// The factor of each interval.
        factor: f64,
    },
}

impl Schedule {
    /// Keeps the same rate in every step.
    pub fn constant(rate: f64) -> Self {
        Self { peak: rate, warmup_steps: 0, decay: Decay::Constant }
    }

    /// Adds a linear warm-up of `steps` steps.
    #[must_use]
    pub fn with_warmup(mut self, steps: u64) -> Self {
        self.warmup_steps = steps;
        self
    }

    /// Sets the decay after the warm-up.
    #[must_use]
    pub fn with_decay(mut self, decay: Decay) -> Self {
        self.decay = decay;
        self
    }

    /// Returns the rate of `step`, counted from zero.
    ///
    /// The warm-up gives its first step a rate above zero, so that no step is wasted; a training that is shorter than
    /// its warm-up ends inside it. After the last step of a cosine or a line its last rate stays.
    pub fn rate(&self, step: u64) -> f64 {
        match step.checked_sub(self.warmup_steps) {
            None => self.peak * (step as f64 + 1.0) / (self.warmup_steps as f64 + 1.0),
            Some(step) => self.peak * self.decay.factor(step),
        }
    }
}

impl Decay {
    fn factor(self, step: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Cosine { steps, final_factor } => {
                let progress = progress(step, steps);
                let cosine = 0.5 * (1.0 + (PI * progress).cos());
                final_factor + (1.0 - final_factor) * cosine
            }
            Self::Linear { steps, final_factor } => {
                1.0 - (1.0 - final_factor) * progress(step, steps)
            }
            Self::Step { every, factor } => factor.powf((step / every.max(1)) as f64),
        }
    }
}

fn progress(step: u64, steps: u64) -> f64 {
    (step as f64 / steps.max(1) as f64).min(1.0)
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peak)?;
        if self.warmup_steps > 0 {
            write!(f, " after {} steps of warm-up", self.warmup_steps)?;
        }
        match self.decay {
            Decay::Constant => Ok(()),
            Decay::Cosine { steps, final_factor: last } => {
                write!(f, ", down a cosine to {last} of it in {steps} steps")
            }
            Decay::Linear { steps, final_factor: last } => {
                write!(f, ", down a line to {last} of it in {steps} steps")
            }
            Decay::Step { every, factor } => write!(f, ", times {factor} every {every} steps"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_said_in_words() {
        let schedule = Schedule::constant(1e-3);
        assert_eq!(schedule.to_string(), "0.001");
        let decays = [
            (
                Decay::Cosine { steps: 540, final_factor: 0.1 },
                ", down a cosine to 0.1 of it in 540 steps",
            ),
            (Decay::Step { every: 30, factor: 0.5 }, ", times 0.5 every 30 steps"),
        ];
        for (decay, words) in decays {
            let text = schedule.with_warmup(60).with_decay(decay).to_string();
            assert_eq!(text, format!("0.001 after 60 steps of warm-up{words}"));
        }
    }

    const SCHEDULE: Schedule = Schedule {
        peak: 1e-3,
        warmup_steps: 100,
        decay: Decay::Cosine { steps: 1900, final_factor: 0.1 },
    };

    fn check(schedule: Schedule, step: u64, expected: f64) {
        let rate = schedule.rate(step);
        assert!((rate - expected).abs() <= 1e-12, "step {step}: {rate} against {expected}");
    }

    #[test]
    fn the_longest_warmup_is_no_overflow() {
        let schedule = Schedule::constant(1.0).with_warmup(u64::MAX);
        let (first, last) = (schedule.rate(0), schedule.rate(u64::MAX - 1));
        assert!(0.0 < first && first < last && last <= 1.0, "{first} {last}");
    }

    #[test]
    fn warms_up_in_equal_steps() {
        check(SCHEDULE, 0, 1e-3 / 101.0);
        check(SCHEDULE, 49, 1e-3 * 50.0 / 101.0);
        check(SCHEDULE, 99, 1e-3 * 100.0 / 101.0);
    }

    #[test]
    fn peaks_after_the_warmup_and_falls_to_the_final_factor() {
        check(SCHEDULE, 100, 1e-3);
        check(SCHEDULE, 1050, 5.5e-4);
        check(SCHEDULE, 2000, 1e-4);
        check(SCHEDULE, 5000, 1e-4);
        for step in 100..1999 {
            assert!(SCHEDULE.rate(step) > SCHEDULE.rate(step + 1), "step {step}");
        }
    }

    /// `LambdaLR` of the classification tutorials: ((1 + cos(pi e / E)) / 2)(1 - f) + f by epoch.
    #[test]
    fn the_cosine_is_that_of_the_tutorials() {
        let (epochs, floor) = (30, 0.1);
        let schedule = Schedule::constant(1.0)
            .with_decay(Decay::Cosine { steps: epochs, final_factor: floor });
        for epoch in 0..=epochs {
            let turn = PI * epoch as f64 / epochs as f64;
            check(schedule, epoch, (1.0 + turn.cos()) / 2.0 * (1.0 - floor) + floor);
        }
    }

    #[test]
    fn falls_in_steps() {
        let schedule = Schedule::constant(0.8)
            .with_warmup(3)
            .with_decay(Decay::Step { every: 10, factor: 0.5 });
        for (step, expected) in [(2, 0.6), (3, 0.8), (12, 0.8), (13, 0.4), (33, 0.1)] {
            check(schedule, step, expected);
        }
    }

    #[test]
    fn needs_neither_warmup_nor_decay() {
        let constant = Schedule::constant(1e-3);
        assert!((0..2000).all(|step| constant.rate(step) == 1e-3));
        let short = SCHEDULE.with_decay(Decay::Constant);
        assert!((0..10).all(|step| short.rate(step) < 1e-3));
        // Nothing to divide by.
        let none = Decay::Step { every: 0, factor: 0.5 };
        assert_eq!(Schedule::constant(1.0).with_decay(none).rate(1), 0.5);
    }
}
