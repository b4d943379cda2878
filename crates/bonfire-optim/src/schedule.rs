//! Learning rates for Burn's learner.

use bonfire_plan::rate::Schedule;
use burn::optim::lr_scheduler::{LrScheduler, LrSchedulerRecord};

/// A [`Schedule`] that counts the steps itself, for Burn's learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduledRate {
    schedule: Schedule,
    step: u64,
}

const STEP: &str = "step";

impl ScheduledRate {
    /// Starts a schedule at `step`.
    pub fn new(schedule: Schedule, step: u64) -> Self {
        Self { schedule, step }
    }
}

impl LrScheduler for ScheduledRate {
    fn step(&mut self) -> f64 {
        self.step += 1;
        self.schedule.rate(self.step - 1)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar(STEP, self.step)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        if let Some(step) = record.scalar::<u64>(STEP) {
            self.step = step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burns_scheduler_steps_through_it_and_resumes() {
        let schedule = Schedule::constant(1e-3).with_warmup(100);
        let mut scheduler = ScheduledRate::new(schedule, 98);
        assert_eq!(LrScheduler::step(&mut scheduler), schedule.rate(98));
        let record = scheduler.to_record();
        let mut resumed = ScheduledRate::new(schedule, 0);
        resumed.load_record(record);
        assert_eq!(LrScheduler::step(&mut resumed), schedule.rate(99));
    }
}
