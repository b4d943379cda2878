//! Averages gradients over the ranks, in buckets, while the backward pass still runs.
//!
//! Buckets travel in their order on every rank, whatever order they become complete in, so that all
//! ranks call the same operations. A gradient is final when as many operations have added to it as
//! in earlier steps; how many that will be cannot be asked of Burn. Should one operation more add
//! to it later, what has travelled was too early: after the backward pass the ranks tell each other,
//! and the buckets concerned travel again. Results therefore never depend on the expectation.
//! Follows PyTorch's `reducer.cpp` otherwise.

use std::sync::Arc;

use bonfire_collective::{ProcessGroup, Rank, ReduceOp};

use crate::assignment::{Assignment, Caps, assign};
use crate::bucket::Bucket;
use crate::harvest::GradientSink;
use crate::host::{Entering, HostSlice};
use crate::parameters::ParameterTable;
use crate::timing::Stopwatch;
use crate::weights::{MicroBatches, Normalizer};
use crate::{TrainError, trace};

/// The buckets of a model, and the state of the step under way.
#[derive(Debug)]
pub(crate) struct Reducer {
    group: ProcessGroup,
    table: Arc<ParameterTable>,
    caps: Caps,
    buckets: Vec<Bucket>,
    homes: Vec<Home>,
    parameters: Vec<Progress>,
    /// The bucket that travels next.
    next: usize,
    /// Counts the additions to gradients in this step.
    clock: u64,
    order: OrderState,
    step: Step,
    pub(crate) trace: trace::Trace,
}

/// Where a parameter's gradient goes.
#[derive(Clone, Copy, Debug)]
struct Home {
    bucket: usize,
    slot: usize,
}

/// What has happened to a parameter's gradient in this step.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// How many operations have added to it.
    additions: u32,
    /// How many will, by the experience of earlier steps; 0 without experience.
    expected: u32,
    /// When the last one did.
    last_addition: u64,
    /// Whether it is in its bucket.
    taken: bool,
    /// Whether there is one, from this or an earlier micro-batch.
    present: bool,
}

/// Where the order of the buckets comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderState {
    /// From the definition of the model: a guess.
    Guessed,
    /// From the first backward pass of rank 0.
    Observed,
}

/// What is the same for all gradients of a step.
#[derive(Debug)]
struct Step {
    entering: Entering,
    normalizer: Normalizer,
    /// Of the communication while the backward pass runs: there is nobody to return it to.
    error: Option<TrainError>,
}

/// What to do with a gradient that was added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addition {
    /// More is expected, or what is expected is not known.
    NotFinal,
    /// It is final: hand it over.
    Final,
}

impl Reducer {
    pub(crate) fn new(group: ProcessGroup, table: Arc<ParameterTable>, caps: Caps) -> Self {
        let order: Vec<usize> = (0..table.len()).rev().collect();
        let parameters = vec![Progress::default(); table.len()];
        let mut reducer = Self {
            group,
            table,
            caps,
            buckets: Vec::new(),
            homes: Vec::new(),
            parameters,
            next: 0,
            clock: 0,
            order: OrderState::Guessed,
            step: Step {
                entering: Entering::Plain,
                normalizer: Normalizer::Known(1.0),
                error: None,
            },
            trace: trace::Trace::new(),
        };
        reducer.deal(&order);
        reducer
    }

    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    fn deal(&mut self, order: &[usize]) {
        let extents = self.table.extents();
        let assignments: Vec<Assignment> = assign(&extents, order, self.caps);
        self.homes = vec![Home { bucket: 0, slot: 0 }; extents.len()];
        for (bucket, assignment) in assignments.iter().enumerate() {
            for (slot, &parameter) in assignment.parameters.iter().enumerate() {
                self.homes[parameter] = Home { bucket, slot };
            }
        }
        self.buckets = assignments
            .iter()
            .map(|assignment| Bucket::new(assignment, &extents))
            .collect();
    }

    /// Begins a backward pass whose gradients travel.
    pub(crate) fn begin(&mut self, entering: Entering, normalizer: Normalizer) {
        self.step = Step {
            entering,
            normalizer,
            error: None,
        };
        self.next = 0;
        self.clock = 0;
        self.buckets.iter_mut().for_each(Bucket::reopen);
        for progress in &mut self.parameters {
            *progress = Progress {
                expected: progress.expected,
                ..Progress::default()
            };
        }
        self.trace.clear();
    }

    /// An operation of the backward pass added to the gradient of a parameter.
    pub(crate) fn added(&mut self, parameter: usize) -> Addition {
        self.clock += 1;
        let progress = &mut self.parameters[parameter];
        progress.additions += 1;
        progress.last_addition = self.clock;
        if progress.additions == progress.expected && self.step.error.is_none() {
            Addition::Final
        } else {
            Addition::NotFinal
        }
    }

    /// Takes a final gradient while the backward pass runs.
    pub(crate) fn take_early(
        &mut self,
        parameter: usize,
        gradient: Result<HostSlice<'_>, TrainError>,
    ) {
        let taken = gradient.and_then(|gradient| self.put(parameter, Some(gradient)));
        if let Err(error) = taken {
            self.step.error.get_or_insert(error);
        }
    }

    /// What went wrong while the backward pass ran.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        self.step.error.take().map_or(Ok(()), Err)
    }

    fn put(&mut self, parameter: usize, gradient: Option<HostSlice<'_>>) -> Result<(), TrainError> {
        let Home { bucket, slot } = self.homes[parameter];
        let progress = &mut self.parameters[parameter];
        assert!(!progress.taken, "a gradient is taken once");
        progress.taken = true;
        match gradient {
            Some(gradient) => {
                self.buckets[bucket].put(slot, gradient, self.step.entering);
                progress.present = true;
            }
            // Never back to absent: a repeated bucket may hold gradients of other ranks only.
            None => progress.present |= self.buckets[bucket].put_none(slot),
        }
        self.trace.taken(parameter);
        self.send_complete()
    }

    /// Hands over what is complete and next in order.
    fn send_complete(&mut self) -> Result<(), TrainError> {
        while let Some(bucket) = self.buckets.get_mut(self.next)
            && bucket.is_complete()
        {
            bucket.send(&self.group, self.step.normalizer.factor()?);
            self.trace.sent(self.next);
            self.next += 1;
        }
        Ok(())
    }

    /// Waits for all averages. Returns the buckets that must travel again, the same on every rank,
    /// opened for it.
    pub(crate) fn settle(
        &mut self,
        micro_batches: MicroBatches,
        watch: &mut Stopwatch,
    ) -> Result<Vec<usize>, TrainError> {
        assert_eq!(self.next, self.buckets.len(), "every bucket has been sent");
        let verdict = self.verdict(micro_batches);
        let verdict = self.group.all_reduce_async(verdict, ReduceOp::Max);
        for bucket in &mut self.buckets {
            watch.time(|| bucket.receive())?;
        }
        let verdict = watch.time(|| verdict.wait())?;
        let (comparable, bits) = verdict.split_at(2);
        let (most, least) = (comparable[0], -comparable[1]);
        if most != least {
            return Err(TrainError::UnequalAccumulation { least, most });
        }
        let (present, early) = bits.split_at(self.parameters.len());
        for (progress, present) in self.parameters.iter_mut().zip(present) {
            progress.present = *present > 0;
            progress.expected = progress.expected.max(progress.additions);
        }
        let again: Vec<usize> = (0..early.len()).filter(|&b| early[b] > 0).collect();
        for &bucket in &again {
            self.reopen(bucket);
        }
        Ok(again)
    }

    /// What this rank tells the others: maxima are taken of it. The number of micro-batches and its
    /// negative; which parameters have a gradient; which buckets travelled too early.
    fn verdict(&self, micro_batches: MicroBatches) -> Vec<i64> {
        let comparable = micro_batches.comparable();
        let mut verdict = vec![comparable, -comparable];
        verdict.extend(self.parameters.iter().map(|p| i64::from(p.present)));
        let early_start = verdict.len();
        verdict.resize(early_start + self.buckets.len(), 0);
        for (progress, home) in self.parameters.iter().zip(&self.homes) {
            if progress.expected > 0 && progress.additions > progress.expected {
                verdict[early_start + home.bucket] = 1;
            }
        }
        verdict
    }

    fn reopen(&mut self, bucket: usize) {
        self.buckets[bucket].reopen();
        for parameter in self.buckets[bucket].parameters().collect::<Vec<_>>() {
            self.parameters[parameter].taken = false;
        }
    }

    /// Sends reopened buckets, which are complete again, and waits for them.
    pub(crate) fn repeat(
        &mut self,
        again: &[usize],
        watch: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        let factor = self.step.normalizer.factor()?;
        for &bucket in again {
            self.buckets[bucket].send(&self.group, factor);
        }
        for &bucket in again {
            watch.time(|| self.buckets[bucket].receive())?;
        }
        Ok(())
    }

    /// The average of a parameter's gradient, if any rank had one.
    pub(crate) fn average(&self, parameter: usize) -> Option<HostSlice<'_>> {
        if !self.parameters[parameter].present {
            return None;
        }
        let Home { bucket, slot } = self.homes[parameter];
        Some(self.buckets[bucket].slot(slot))
    }

    /// Ends a step. After the first one the buckets are dealt again, in the order in which the
    /// gradients of rank 0 became final.
    pub(crate) fn end(&mut self) -> Result<(), TrainError> {
        self.buckets.iter_mut().for_each(Bucket::end_accumulation);
        if self.order == OrderState::Guessed {
            let mut order = self.observed_order();
            self.group.broadcast(&mut order, Rank::new(0))?;
            let order: Vec<usize> = order.into_iter().map(|index| index as usize).collect();
            self.deal(&order);
            self.order = OrderState::Observed;
        }
        Ok(())
    }

    /// Parameters in the order of their last additions; those without any at the end, last defined
    /// first.
    fn observed_order(&self) -> Vec<i64> {
        let mut order: Vec<usize> = (0..self.parameters.len()).rev().collect();
        order.sort_by_key(|&index| match self.parameters[index].last_addition {
            0 => u64::MAX,
            time => time,
        });
        order.into_iter().map(|index| index as i64).collect()
    }
}

/// After the backward pass: what has not been taken while it ran.
impl GradientSink for Reducer {
    fn wants(&self, parameter: usize) -> bool {
        !self.parameters[parameter].taken
    }

    fn take(
        &mut self,
        parameter: usize,
        gradient: Option<HostSlice<'_>>,
    ) -> Result<(), TrainError> {
        self.put(parameter, gradient)
    }
}

/// Adds up micro-batches that do not travel by themselves.
pub(crate) struct Accumulate<'a> {
    pub(crate) reducer: &'a mut Reducer,
    pub(crate) entering: Entering,
}

impl GradientSink for Accumulate<'_> {
    fn wants(&self, _parameter: usize) -> bool {
        true
    }

    fn take(
        &mut self,
        parameter: usize,
        gradient: Option<HostSlice<'_>>,
    ) -> Result<(), TrainError> {
        if let Some(gradient) = gradient {
            let Home { bucket, slot } = self.reducer.homes[parameter];
            self.reducer.buckets[bucket].accumulate(slot, gradient, self.entering);
        }
        Ok(())
    }
}
