//! Averages gradients over the ranks, in buckets, while the backward pass still runs.
//!
//! Buckets travel in their order on every rank, whatever order they become complete in, so that all
//! ranks call the same operations. Follows PyTorch's `reducer.cpp`.

mod sink;

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::{Rank, ReduceOp};

use crate::assignment::{Assignment, Caps, assign};
use crate::bucket::Bucket;
use crate::compression::{Compressor, Presence};
use crate::device_route::{Chosen, DeviceBuckets, DeviceTensor};
use crate::harvest::{Gradient, Site};
use crate::host::{Entering, HostSlice};
use crate::parameters::ParameterTable;
use crate::patience::WarmUp;
use crate::timing::Stopwatch;
use crate::weights::{MicroBatches, Normalizer};
use crate::{TrainError, trace};

pub(crate) use sink::Accumulate;

/// The buckets of a model, and the state of the step under way.
#[derive(Debug)]
pub(crate) struct Reducer {
    group: WarmUp,
    table: Arc<ParameterTable>,
    caps: Caps,
    pub(crate) compressor: Compressor,
    /// The parameters of each bucket.
    assignments: Vec<Assignment>,
    buckets: Buckets,
    homes: Vec<Home>,
    parameters: Vec<Progress>,
    /// The bucket that travels next.
    next: usize,
    /// Counts the final gradients of this step.
    clock: u64,
    /// Synchronised steps so far, up to [`GUESSED_STEPS`].
    steps: u32,
    step: Step,
    pub(crate) trace: trace::Trace,
}

/// Buckets, by the way that they travel.
#[derive(Debug)]
enum Buckets {
    /// Through host memory.
    Host(Vec<Bucket>),
    /// From device to device.
    Device(DeviceBuckets),
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
    /// When it became final, counted in gradients; 0 if it did not while the pass ran.
    ready: u64,
    /// Whether it is in its bucket.
    taken: bool,
    /// Whether there is one, from this or an earlier micro-batch.
    present: bool,
}

/// How many steps the order of the buckets is a guess for. In the first step, hooks do not know yet
/// where they belong in the backward pass; the second shows the order of the gradients.
const GUESSED_STEPS: u32 = 2;

/// What is the same for all gradients of a step.
#[derive(Debug)]
struct Step {
    entering: Entering,
    normalizer: Normalizer,
    /// Of the communication while the backward pass runs: there is nobody to return it to.
    error: Option<TrainError>,
    /// Waiting for what the other ranks' batches count, before the first bucket can travel.
    waited: Stopwatch,
    /// Waiting for the device to end what the backward pass queued.
    computed: Stopwatch,
}

impl Reducer {
    pub(crate) fn new(
        group: WarmUp,
        table: Arc<ParameterTable>,
        (caps, compressor): (Caps, Compressor),
        way: Chosen,
    ) -> Result<Self, TrainError> {
        let order: Vec<usize> = (0..table.len()).rev().collect();
        let parameters = vec![Progress::default(); table.len()];
        let extents = table.extents();
        let assignments = assign(&extents, &order, caps);
        let buckets = match way {
            Chosen::Host => Buckets::Host(Vec::new()),
            Chosen::Device(engine) => {
                Buckets::Device(DeviceBuckets::new(engine, &assignments, &extents)?)
            }
        };
        let mut reducer = Self {
            group,
            homes: homes(&assignments, extents.len()),
            table,
            caps,
            compressor,
            assignments,
            buckets,
            parameters,
            next: 0,
            clock: 0,
            steps: 0,
            step: Step {
                entering: Entering::Plain,
                normalizer: Normalizer::Known(1.0),
                error: None,
                waited: Stopwatch::default(),
                computed: Stopwatch::default(),
            },
            trace: trace::Trace::new(),
        };
        if let Buckets::Host(_) = reducer.buckets {
            reducer.buckets = Buckets::Host(reducer.host_buckets());
        }
        Ok(reducer)
    }

    /// The parameters of each bucket.
    pub(crate) fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// Where gradients are wanted.
    pub(crate) fn site(&self) -> Site {
        match self.buckets {
            Buckets::Host(_) => Site::Host,
            Buckets::Device(_) => Site::Device,
        }
    }

    fn deal(&mut self, order: &[usize]) -> Result<(), TrainError> {
        let extents = self.table.extents();
        self.assignments = assign(&extents, order, self.caps);
        self.homes = homes(&self.assignments, extents.len());
        match &mut self.buckets {
            Buckets::Host(_) => self.buckets = Buckets::Host(self.host_buckets()),
            Buckets::Device(buckets) => buckets.deal(&self.assignments, &extents)?,
        }
        Ok(())
    }

    fn host_buckets(&self) -> Vec<Bucket> {
        let extents = self.table.extents();
        let assignments = self.assignments.iter().enumerate();
        assignments
            .map(|(bucket, assignment)| {
                let group = self.group.named(&self.name_of(bucket, assignment));
                Bucket::new(assignment, &extents, &self.compressor, group)
            })
            .collect()
    }

    /// What a bucket is called where something goes wrong in it.
    fn name_of(&self, bucket: usize, assignment: &Assignment) -> String {
        let name = |parameter: &usize| &self.table.get(*parameter).name;
        match &assignment.parameters[..] {
            [] => format!("bucket {bucket}"),
            [only] => format!("bucket {bucket}: {}", name(only)),
            [first, .., last] => format!("bucket {bucket}: {} to {}", name(first), name(last)),
        }
    }

    /// Begins a backward pass whose gradients travel.
    pub(crate) fn begin(
        &mut self,
        entering: Entering,
        normalizer: Normalizer,
    ) -> Result<(), TrainError> {
        self.step = Step {
            entering,
            normalizer,
            error: None,
            waited: Stopwatch::default(),
            computed: Stopwatch::default(),
        };
        self.next = 0;
        self.clock = 0;
        self.parameters.fill(Progress::default());
        self.trace.clear();
        match &mut self.buckets {
            Buckets::Host(buckets) => buckets.iter_mut().for_each(Bucket::reopen),
            Buckets::Device(buckets) => buckets.reopen()?,
        }
        Ok(())
    }

    /// Takes a final gradient while the backward pass runs.
    pub(crate) fn take_early(
        &mut self,
        parameter: usize,
        gradient: Result<Gradient<'_>, TrainError>,
    ) {
        if self.step.error.is_some() {
            return;
        }
        self.clock += 1;
        self.parameters[parameter].ready = self.clock;
        let taken = gradient.and_then(|gradient| self.put(parameter, Some(gradient)));
        if let Err(error) = taken {
            self.step.error = Some(error);
        }
    }

    /// Adds a final gradient to those of a later pass, while the backward pass runs.
    pub(crate) fn add_early(
        &mut self,
        parameter: usize,
        gradient: Result<Gradient<'_>, TrainError>,
        entering: Entering,
    ) {
        match gradient {
            Ok(gradient) => self.accumulate(parameter, gradient, entering),
            Err(error) => self.step.error = Some(error),
        }
    }

    fn accumulate(&mut self, parameter: usize, gradient: Gradient<'_>, entering: Entering) {
        let Home { bucket, slot } = self.homes[parameter];
        match (&mut self.buckets, gradient) {
            (Buckets::Host(buckets), Gradient::Host(gradient)) => {
                buckets[bucket].accumulate(slot, gradient, entering);
            }
            (Buckets::Device(buckets), Gradient::Device(gradient)) => {
                buckets.accumulate(bucket, slot, gradient);
            }
            (_, gradient) => unreachable!("{ELSEWHERE}: {gradient:?}"),
        }
    }

    /// Ends a pass whose gradients are added to those of a later one.
    pub(crate) fn end_accumulating(&mut self, entering: Entering) -> Result<(), TrainError> {
        match &mut self.buckets {
            Buckets::Host(_) => Ok(()),
            Buckets::Device(buckets) => buckets.keep(entering),
        }
    }

    /// What went wrong while the backward pass ran.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        self.step.error.take().map_or(Ok(()), Err)
    }

    fn put(&mut self, parameter: usize, gradient: Option<Gradient<'_>>) -> Result<(), TrainError> {
        let Home { bucket, slot } = self.homes[parameter];
        let progress = &mut self.parameters[parameter];
        assert!(!progress.taken, "a gradient is taken once");
        progress.taken = true;
        progress.present = match (&mut self.buckets, gradient) {
            (Buckets::Host(buckets), Some(Gradient::Host(gradient))) => {
                buckets[bucket].put(slot, gradient, self.step.entering);
                true
            }
            (Buckets::Host(buckets), None) => buckets[bucket].put_none(slot),
            (Buckets::Device(buckets), Some(Gradient::Device(gradient))) => {
                buckets.put(bucket, slot, Some(gradient))
            }
            (Buckets::Device(buckets), None) => buckets.put(bucket, slot, None),
            (_, gradient) => unreachable!("{ELSEWHERE}: {gradient:?}"),
        };
        self.trace.taken(parameter);
        // A backward pass must not wait for ranks that may be waiting for it, in a layer that
        // exchanges something. What stays here leaves with the next gradient, or in the end.
        if self.step.normalizer.is_ready() {
            self.send_complete()?;
        }
        Ok(())
    }

    /// Whether what is complete leaves at once.
    #[cfg(test)]
    pub(crate) fn is_ready(&self) -> bool {
        self.step.normalizer.is_ready()
    }

    /// Hands over what is complete and next in order.
    fn send_complete(&mut self) -> Result<(), TrainError> {
        while self.is_complete(self.next) == Some(true) {
            let Step {
                normalizer,
                waited,
                entering,
                ..
            } = &mut self.step;
            let factor = waited.time(|| normalizer.factor())?;
            match &mut self.buckets {
                Buckets::Host(buckets) => buckets[self.next].send(factor, &mut self.compressor),
                Buckets::Device(buckets) => buckets.send(self.next, (*entering, factor))?,
            }
            self.trace.sent(self.next);
            self.next += 1;
        }
        Ok(())
    }

    /// Whether a bucket is complete; none if there is no such bucket.
    fn is_complete(&self, index: usize) -> Option<bool> {
        match &self.buckets {
            Buckets::Host(buckets) => buckets.get(index).map(Bucket::is_complete),
            Buckets::Device(buckets) => buckets.is_complete(index),
        }
    }

    /// How long the backward pass stood still for other ranks.
    pub(crate) fn waited(&self) -> Duration {
        self.step.waited.total()
    }

    /// How long the backward pass went on when the host was done with it.
    pub(crate) fn computed(&self) -> Duration {
        self.step.computed.total()
    }

    /// Waits for all averages.
    pub(crate) fn settle(
        &mut self,
        micro_batches: MicroBatches,
        watch: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        watch.time(|| self.send_complete())?;
        let buckets = self.assignments.len();
        assert_eq!(self.next, buckets, "every bucket has been sent");
        // Maxima are taken: of the number of micro-batches and its negative, and of whether each
        // parameter has a gradient.
        let comparable = micro_batches.comparable();
        let mut verdict = vec![comparable, -comparable];
        verdict.extend(self.parameters.iter().map(|p| i64::from(p.present)));
        let verdict = self.group.all_reduce_async(verdict, ReduceOp::Max);
        if let Buckets::Host(buckets) = &mut self.buckets {
            for bucket in buckets {
                watch.time(|| bucket.advance(&mut self.compressor))?;
            }
        }
        let verdict = watch.time(|| verdict.wait())?;
        let (comparable, present) = verdict.split_at(2);
        let (most, least) = (comparable[0], -comparable[1]);
        if most != least {
            return Err(TrainError::UnequalAccumulation { least, most });
        }
        for (progress, present) in self.parameters.iter_mut().zip(present) {
            progress.present = *present > 0;
        }
        let presence = |parameter: usize| match self.parameters[parameter].present {
            true => Presence::Somewhere,
            false => Presence::Nowhere,
        };
        if let Buckets::Host(buckets) = &mut self.buckets {
            for bucket in buckets {
                watch.time(|| bucket.receive(&mut self.compressor, presence))?;
            }
        }
        Ok(())
    }

    /// Whether any rank had a gradient for a parameter, once the averages have settled.
    pub(crate) fn has_average(&self, parameter: usize) -> bool {
        self.parameters[parameter].present
    }

    /// Lets the tensors of gradients be written to that nobody else has: the backward pass is over.
    pub(crate) fn release(&mut self) {
        if let Buckets::Device(buckets) = &mut self.buckets {
            buckets.release();
        }
    }

    /// Writes averages to tensors on their devices, and waits until they are there.
    pub(crate) fn deliver(
        &mut self,
        targets: Vec<(usize, DeviceTensor)>,
        watch: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        let Buckets::Device(buckets) = &mut self.buckets else {
            unreachable!("{ELSEWHERE}");
        };
        let homes = &self.homes;
        let targets = targets
            .into_iter()
            .map(|(parameter, tensor)| {
                let Home { bucket, slot } = homes[parameter];
                (bucket, slot, tensor)
            })
            .collect();
        let entering = self.step.entering;
        buckets.deliver(entering, targets, (&mut self.step.computed, watch))
    }

    /// Tells ranks that wait for this one on a device.
    pub(crate) fn abort(&self, cause: &str) {
        if let Buckets::Device(buckets) = &self.buckets {
            buckets.abort(cause);
        }
    }

    /// The average of a parameter's gradient, if any rank had one.
    pub(crate) fn average(&self, parameter: usize) -> Option<HostSlice<'_>> {
        if !self.parameters[parameter].present {
            return None;
        }
        let Home { bucket, slot } = self.homes[parameter];
        let Buckets::Host(buckets) = &self.buckets else {
            unreachable!("{ELSEWHERE}");
        };
        Some(buckets[bucket].slot(slot))
    }

    /// Ends a step. After the second one the buckets are dealt again, in the order in which the
    /// gradients of rank 0 became final.
    pub(crate) fn end(&mut self) -> Result<(), TrainError> {
        match &mut self.buckets {
            Buckets::Host(buckets) => buckets.iter_mut().for_each(Bucket::end_accumulation),
            Buckets::Device(buckets) => buckets.end_accumulation(),
        }
        self.compressor.end_step();
        if self.steps == GUESSED_STEPS {
            return Ok(());
        }
        self.steps += 1;
        self.group.end_step();
        if self.steps == GUESSED_STEPS {
            let mut order = self.observed_order();
            self.group.broadcast(&mut order, Rank::new(0))?;
            let order: Vec<usize> = order.into_iter().map(|index| index as usize).collect();
            self.deal(&order)?;
        }
        Ok(())
    }

    /// Parameters in the order in which their gradients became final; those without one at the end,
    /// last defined first.
    fn observed_order(&self) -> Vec<i64> {
        let mut order: Vec<usize> = (0..self.parameters.len()).rev().collect();
        order.sort_by_key(|&index| match self.parameters[index].ready {
            0 => u64::MAX,
            time => time,
        });
        order.into_iter().map(|index| index as i64).collect()
    }
}

/// What is said where a gradient is in other memory than its bucket.
const ELSEWHERE: &str = "gradients come from where they are wanted";

/// Where each parameter's gradient goes.
fn homes(assignments: &[Assignment], parameters: usize) -> Vec<Home> {
    let mut homes = vec![Home { bucket: 0, slot: 0 }; parameters];
    for (bucket, assignment) in assignments.iter().enumerate() {
        for (slot, &parameter) in assignment.parameters.iter().enumerate() {
            homes[parameter] = Home { bucket, slot };
        }
    }
    homes
}
