//! The learning rate of every step: a linear warm-up, then half a cosine down to a final fraction.

use std::f64::consts::PI;

/// A learning-rate schedule; a pure function of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached when the warm-up ends.
    pub peak: f64,
    /// The last rate as a fraction of the peak.
    pub final_factor: f64,
    /// Steps of the warm-up.
    pub warmup_steps: usize,
    /// Steps of the whole training.
    pub steps: usize,
}

impl Schedule {
    /// The rate of `step`, counted from zero.
    ///
    /// The warm-up gives its first step a rate above zero, so that no step is wasted; a training
    /// that is shorter than its warm-up ends inside it.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        let decay_steps = self.steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((step - self.warmup_steps) as f64 / decay_steps as f64).min(1.0);
        let cosine = 0.5 * (1.0 + (PI * progress).cos());
        let floor = self.peak * self.final_factor;
        floor + (self.peak - floor) * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        peak: 1e-3,
        final_factor: 0.1,
        warmup_steps: 100,
        steps: 2000,
    };

    fn check(step: usize, expected: f64) {
        let rate = SCHEDULE.rate(step);
        assert!(
            (rate - expected).abs() <= 1e-12,
            "step {step}: {rate} against {expected}"
        );
    }

    #[test]
    fn warms_up_in_equal_steps() {
        check(0, 1e-3 / 101.0);
        check(49, 1e-3 * 50.0 / 101.0);
        check(99, 1e-3 * 100.0 / 101.0);
    }

    #[test]
    fn peaks_after_the_warmup_and_falls_to_the_final_factor() {
        check(100, 1e-3);
        check(1050, 5.5e-4);
        check(2000, 1e-4);
        check(5000, 1e-4);
        for step in 100..1999 {
            assert!(SCHEDULE.rate(step) > SCHEDULE.rate(step + 1), "step {step}");
        }
    }

    #[test]
    fn needs_neither_warmup_nor_decay() {
        let constant = Schedule {
            final_factor: 1.0,
            warmup_steps: 0,
            ..SCHEDULE
        };
        assert!((0..2000).all(|step| constant.rate(step) == 1e-3));
        let short = Schedule {
            steps: 10,
            ..SCHEDULE
        };
        assert!((0..10).all(|step| short.rate(step) < 1e-3));
    }
}
