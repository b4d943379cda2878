//! The time of a learner's steps, for its user and its display.

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::{Mutex, Rank};
use burn::tensor::TensorReadError;
use burn_train::metric::state::{FormatOptions, NumericMetricState};
use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::error::LearnerError;
use bonfire_train::{StepTiming, World};

/// The time of the synchronised steps of a training with Burn's learner, by part. Pass it to
/// [`LearnerConfig::with_timings`](crate::LearnerConfig::with_timings), and its metrics to the learner:
///
/// ```no_run
/// # mod bonfire { pub mod learner { pub use bonfire_learner::*; } }
/// # use bonfire_learner::DistributedModel;
/// # use bonfire_train::World;
/// use bonfire::learner::{DistributedTraining, LearnerConfig, StepTimings};
/// use burn_train::SupervisedTraining;
///
/// # fn timed<M: DistributedModel>(training: SupervisedTraining<M>, world: &World) -> SupervisedTraining<M> {
/// let timings = StepTimings::new();
/// training
///     .metric_train_numeric(timings.exposed_communication())
///     .metric_train_numeric(timings.forward_backward())
///     .distributed_with(world, LearnerConfig::default().with_timings(&timings))
/// # }
/// ```
///
/// Clones share the times. A program may read them while it trains, or afterwards.
#[derive(Clone, Debug, Default)]
pub struct StepTimings(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    steps: u64,
    latest: StepTiming,
    total: StepTiming,
    /// The latest step of all ranks, on rank 0.
    ranks: Vec<StepTiming>,
    /// Means over the ranks, on rank 0.
    means: StepTiming,
}

impl StepTimings {
    /// Makes timings of no steps yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of synchronised steps that this rank has done.
    pub fn steps(&self) -> u64 {
        self.0.lock().steps
    }

    /// Returns the timing of this rank's latest step.
    pub fn latest(&self) -> StepTiming {
        self.0.lock().latest
    }

    /// Returns the sum of this rank's steps.
    pub fn total(&self) -> StepTiming {
        self.0.lock().total
    }

    /// Returns the latest step of every rank, in rank order; empty before the first, and on all ranks but 0.
    pub fn of_ranks(&self) -> Vec<StepTiming> {
        self.0.lock().ranks.clone()
    }

    /// Returns a metric: [`StepTiming::exposed_communication`] per step in milliseconds, the mean over the ranks. For
    /// the training split; no step is validated.
    pub fn exposed_communication(&self) -> StepTimeMetric {
        StepTimeMetric::new(self, Part::ExposedCommunication)
    }

    /// Returns a metric: [`StepTiming::forward_backward`] per step in milliseconds, the mean over the ranks.
    pub fn forward_backward(&self) -> StepTimeMetric {
        StepTimeMetric::new(self, Part::ForwardBackward)
    }

    /// Records a step of this rank, and on rank 0 of all. Every rank must call it.
    #[track_caller]
    pub(crate) fn book(&self, world: &World, own: StepTiming) -> Result<(), LearnerError> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) as i64;
        let said = [nanos(own.forward_backward), nanos(own.exposed_communication)];
        let all = world.group().gather(&said, Rank::new(0))?;
        let ranks: Vec<StepTiming> = all
            .iter()
            .flat_map(|all| all.chunks_exact(said.len()))
            .map(|said| StepTiming {
                forward_backward: Duration::from_nanos(said[0] as u64),
                exposed_communication: Duration::from_nanos(said[1] as u64),
            })
            .collect();
        let mut times = self.0.lock();
        times.steps += 1;
        times.latest = own;
        add(&mut times.total, own, 1);
        for of_rank in &ranks {
            add(&mut times.means, *of_rank, world.world_size().get());
        }
        times.ranks = ranks;
        Ok(())
    }
}

fn add(total: &mut StepTiming, step: StepTiming, share_of: u32) {
    total.forward_backward += step.forward_backward / share_of;
    total.exposed_communication += step.exposed_communication / share_of;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    ForwardBackward,
    ExposedCommunication,
}

impl Part {
    fn of(self, timing: StepTiming) -> Duration {
        match self {
            Self::ForwardBackward => timing.forward_backward,
            Self::ExposedCommunication => timing.exposed_communication,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ForwardBackward => "Forward and backward",
            Self::ExposedCommunication => "Exposed communication",
        }
    }
}

/// A metric of Burn's learner that shows a part of [`StepTimings`], in milliseconds per step, the mean
/// over the ranks and, for an epoch, over its steps.
#[derive(Clone)]
pub struct StepTimeMetric {
    timings: StepTimings,
    part: Part,
    name: MetricName,
    state: NumericMetricState,
    /// Number and time of the steps that have been shown.
    seen: (u64, Duration),
    steps: usize,
}

const UNIT: &str = "ms";

impl std::fmt::Debug for StepTimeMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut metric = f.debug_struct("StepTimeMetric");
        metric.field("part", &self.part).finish_non_exhaustive()
    }
}

impl StepTimeMetric {
    fn new(timings: &StepTimings, part: Part) -> Self {
        Self {
            timings: timings.clone(),
            part,
            name: Arc::new(part.name().to_owned()),
            state: NumericMetricState::new(),
            seen: (0, Duration::ZERO),
            steps: 0,
        }
    }

    /// Adds the steps since the last call. A step has as many outputs as ranks, and there are steps without any that
    /// is synchronised.
    fn catch_up(&mut self) {
        let times = self.timings.0.lock();
        let (steps, time) = (times.steps, self.part.of(times.means));
        drop(times);
        let (seen_steps, seen_time) = self.seen;
        let count = (steps - seen_steps) as usize;
        if count > 0 {
            let seconds = time.saturating_sub(seen_time).as_secs_f64();
            self.state.update(seconds * 1000.0 / count as f64, count);
            self.seen = (steps, time);
            self.steps += count;
        } else if self.steps > 0 {
            // The same again, which counts for nothing.
            let latest = self.state.current_value().current();
            self.state.update(latest, 0);
        }
    }

    /// Formats the value, once there is one: with accumulation the first outputs come before a step is synchronised.
    fn shown(
        &self,
        format: impl FnOnce(&NumericMetricState, FormatOptions) -> SerializedEntry,
    ) -> SerializedEntry {
        if self.steps == 0 {
            return SerializedEntry::not_available(Some(UNIT));
        }
        format(&self.state, FormatOptions::new(self.name()).unit(UNIT).precision(3))
    }
}

impl Metric for StepTimeMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::clone(&self.name)
    }

    fn description(&self) -> Option<String> {
        let text = match self.part {
            Part::ForwardBackward => {
                "The forward and backward passes of a step, with the communication that they hide; \
                 the mean over the ranks."
            }
            Part::ExposedCommunication => {
                "What communication adds to a step: how long a rank waits for the gradients of \
                 others; the mean over the ranks."
            }
        };
        Some(text.to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some(UNIT.to_owned()), higher_is_better: false }.into()
    }

    fn update(
        &mut self,
        (): &(),
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.catch_up();
        Ok(self.shown(NumericMetricState::compute_update))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        self.catch_up();
        Ok(self.shown(NumericMetricState::compute_final))
    }

    fn clear(&mut self) {
        self.state.reset();
        self.steps = 0;
    }
}

impl Numeric for StepTimeMetric {
    fn value(&self) -> Option<NumericEntry> {
        (self.steps > 0).then(|| self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        (self.steps > 0).then(|| self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
