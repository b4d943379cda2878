//! Averages gradients over the ranks, in buckets, while the backward pass still runs.
//!
//! Buckets are sent in their order on every rank, in whatever order they become complete, so that all ranks call the
//! same operations. Follows PyTorch's `reducer.cpp`.

pub(crate) mod bucket;
pub(crate) mod collect;
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "nothing of this build has devices to stay on")
)]
pub(crate) mod device_route;
pub(crate) mod hooks;
pub(crate) mod operation;
pub(crate) mod readback;
pub(crate) mod timing;
pub(crate) mod trace;

mod buckets;
mod fill;
pub(crate) mod parameter_gather;
mod pool;
mod step;
mod step_flags;

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::{ProcessGroup, Rank};
use bonfire_plan::buckets::{Assignment, Caps, assign};
use bonfire_plan::{Division, Sharding};
use burn::tensor::Tensor;

use crate::TrainError;
use crate::compression::{Compressor, Presence};
use crate::loss::weights::{MicroBatches, Normalizer};
use crate::parameters::ParameterTable;
use crate::parameters::shards::Shards;
use crate::reducer::bucket::Bucket;
use crate::reducer::bucket::layout::BucketLayout;
use crate::reducer::collect::Site;
use crate::reducer::device_route::Chosen;
use crate::reducer::parameter_gather::ParameterGather;
use crate::reducer::pool::Pool;
use crate::reducer::timing::Stopwatch;
use crate::values::{DeviceTensor, Scale};
use crate::world::timeouts::WarmUp;
use buckets::{Buckets, Home};
use step::Step;
use step_flags::StepFlags;

/// The buckets of a model, and the state of the present step.
#[derive(Debug)]
pub(crate) struct Reducer {
    group: WarmUp,
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    caps: Caps,
    pub(crate) compressor: Compressor,
    assignments: Vec<Assignment>,
    buckets: Buckets,
    /// The group of the engine of [`Buckets::Device`], whose ranks may wait for this one on a device.
    pub(crate) device_group: Option<ProcessGroup>,
    is_made: bool,
    pool: Pool,
    homes: Vec<Home>,
    parameters: Vec<Progress>,
    /// Gradients of parameters whose buckets wait for others. Only then is their device waited for.
    unread: Vec<(usize, Tensor<1>)>,
    next: usize,
    /// Counts the final gradients of this step.
    clock: u64,
    /// Synchronised steps so far, up to [`GUESSED_STEPS`].
    steps: u32,
    step: Step,
    pub(crate) trace: trace::Trace,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The count of final gradients when it became final; 0 if it did not while the pass ran.
    ready: u64,
    taken: bool,
    /// True if there is one, from this or an earlier micro-batch.
    present: bool,
}

/// Number of steps in which the order of the buckets is a guess. In the first step, hooks only guess their position in
/// the backward pass; the second shows the order of the gradients.
const GUESSED_STEPS: u32 = 2;

impl Reducer {
    /// Assigns a model's parameters to buckets, which have memory from here on; those of a lone rank get it on first
    /// use, which may never come. Every rank calls it.
    pub(crate) fn new(
        group: WarmUp,
        table: Arc<ParameterTable>,
        shards: Arc<Shards>,
        caps: Caps,
        compressor: Compressor,
        way: Chosen,
    ) -> Result<Self, TrainError> {
        let order: Vec<usize> = (0..table.len()).rev().collect();
        let parameters = vec![Progress::default(); table.len()];
        let division = |parameter| shards.division(parameter);
        let assignments = assign(&table.extents(), division, &order, caps);
        let is_alone = group.world_size().get() == 1;
        let device_group = match &way {
            Chosen::Host => None,
            Chosen::Device(engine) => Some(engine.group().clone()),
        };
        let mut reducer = Self {
            group,
            homes: homes(&assignments, table.len()),
            table,
            shards,
            caps,
            compressor,
            assignments,
            buckets: Buckets::new(way),
            device_group,
            is_made: false,
            pool: Pool::default(),
            parameters,
            unread: Vec::new(),
            next: 0,
            clock: 0,
            steps: 0,
            step: Step::new(Scale::One, Normalizer::Known(1.0)),
            trace: trace::Trace::new(),
        };
        if !is_alone {
            reducer.make()?;
        }
        Ok(reducer)
    }

    pub(crate) fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    pub(crate) fn site(&self) -> Site {
        self.buckets.site()
    }

    fn reassign(&mut self, order: &[usize]) -> Result<(), TrainError> {
        let division = |parameter| self.shards.division(parameter);
        self.assignments = assign(&self.table.extents(), division, order, self.caps);
        self.homes = homes(&self.assignments, self.table.len());
        // Memory of dropped buckets may be too small for the new ones, and would stay unused.
        self.pool = Pool::default();
        self.is_made = false;
        match &mut self.buckets {
            // The gradients of this step lie in the memory of the old ones. The next pass gives the new ones theirs, so
            // that both are not there at once.
            Buckets::Host(buckets) => {
                buckets.clear();
                Ok(())
            }
            Buckets::Device(_) => self.make(),
        }
    }

    /// Allocates the buckets, unless they have memory. Every rank calls it alike.
    fn make(&mut self) -> Result<(), TrainError> {
        if self.is_made {
            return Ok(());
        }
        match &mut self.buckets {
            Buckets::Host(_) => self.buckets = Buckets::Host(self.host_buckets()),
            Buckets::Device(buckets) => {
                let (shards, extents) = (&self.shards, self.table.extents());
                let layouts = self.assignments.iter();
                let layouts = layouts.map(|a| BucketLayout::on_device(a, shards, &extents));
                let gradients = shards.layout().placement().gradients;
                buckets.assign(layouts.collect(), gradients == Sharding::Sharded)?;
            }
        }
        self.is_made = true;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn is_made(&self) -> bool {
        self.is_made
    }

    fn host_buckets(&self) -> Vec<Bucket> {
        let assignments = self.assignments.iter().enumerate();
        assignments
            .map(|(bucket, assignment)| {
                let group = match assignment.division {
                    Division::Whole => &*self.group,
                    Division::Rows | Division::Owned(_) => self.shards.groups().among(&self.group),
                };
                let group = group.named(&self.name_of(bucket, assignment));
                let flags = if bucket + 1 == self.assignments.len() {
                    step_flags::len(self.table.len())
                } else {
                    0
                };
                let (shards, pool) = (&self.shards, &self.pool);
                Bucket::new(assignment, flags, shards, pool, &self.compressor, group)
            })
            .collect()
    }

    fn name_of(&self, bucket: usize, assignment: &Assignment) -> String {
        let name = |parameter: &usize| &self.table.get(*parameter).name;
        match &assignment.parameters[..] {
            [] => format!("bucket {bucket}"),
            [only] => format!("bucket {bucket}: {}", name(only)),
            [first, .., last] => format!("bucket {bucket}: {} to {}", name(first), name(last)),
        }
    }

    /// Begins a backward pass whose gradients are sent. `exchanges` is true if layers of this rank communicate in it.
    ///
    /// A rank that does not know the weights of the batches yet enters an exchange with complete buckets. On the
    /// device of a rank that knows them, the same buckets wait for the first rank's; if that rank then waits for its
    /// device, as when a kernel is loaded, it never reaches the exchange. So these buckets are sent at the end.
    pub(crate) fn begin(
        &mut self,
        micro_batches: MicroBatches,
        scale: Scale,
        normalizer: Normalizer,
        exchanges: bool,
    ) -> Result<(), TrainError> {
        self.make()?;
        let on_devices = self.site() == Site::Device;
        // Lanes load kernels and make memory at first use, for which a device may have to be idle.
        let is_new = on_devices && self.steps < GUESSED_STEPS;
        let is_held = is_new || exchanges && on_devices && !normalizer.is_known();
        self.step = Step { micro_batches, exchanges, is_held, ..Step::new(scale, normalizer) };
        self.next = 0;
        self.clock = 0;
        self.parameters.fill(Progress::default());
        self.unread.clear();
        self.trace.clear();
        self.buckets.reopen()
    }

    /// Waits for the last pass where only the device does: what it averaged may be missing if a rank has failed.
    pub(crate) fn wait(&mut self) -> Result<(), TrainError> {
        self.buckets.wait()
    }

    /// Begins a pass whose gradients are added to those of a later one.
    pub(crate) fn begin_accumulating(&mut self, scale: Scale) -> Result<(), TrainError> {
        self.make()?;
        self.step = Step { is_accumulating: true, ..Step::new(scale, Normalizer::Known(1.0)) };
        self.parameters.fill(Progress::default());
        self.unread.clear();
        Ok(())
    }

    /// Ends a pass whose gradients are added to those of a later one.
    pub(crate) fn end_accumulating(&mut self) -> Result<(), TrainError> {
        // Buckets with a parameter that has no gradient.
        for bucket in 0..self.assignments.len() {
            self.read(bucket)?;
        }
        self.buckets.keep(self.step.scale)
    }

    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        self.step.error.take().map_or(Ok(()), Err)
    }

    /// Returns true if complete buckets are sent at once.
    #[cfg(test)]
    pub(crate) fn is_ready(&self) -> bool {
        self.step.normalizer.is_ready()
    }

    pub(crate) fn waited(&self) -> Duration {
        self.step.waited.total()
    }

    /// Time of the backward pass after the host was done with it.
    pub(crate) fn computed(&self) -> Duration {
        self.step.computed.total()
    }

    pub(crate) fn settle(&mut self, watch: &mut Stopwatch) -> Result<(), TrainError> {
        watch.time(|| self.send_complete())?;
        let mut waiting = self.assignments.len();
        assert_eq!(self.next, waiting, "every bucket has been sent");
        let own = self.step_flags();
        let flags = match self.buckets.flagged() {
            Some(bucket) => {
                // Nothing that comes before it looks at what any rank has.
                watch.time(|| bucket.receive(&mut self.compressor, |_| Presence::Nowhere))?;
                let sent = bucket.flags();
                waiting -= 1;
                own.of_all(&sent, &self.group)?
            }
            None => {
                let work = own.start(&self.group);
                for bucket in self.buckets.on_host() {
                    watch.time(|| bucket.advance(&mut self.compressor))?;
                }
                watch.time(|| work.wait())?
            }
        };
        for (progress, present) in self.parameters.iter_mut().zip(flags.present) {
            progress.present = present;
        }
        let presence = |parameter: usize| {
            if self.parameters[parameter].present { Presence::Somewhere } else { Presence::Nowhere }
        };
        for bucket in self.buckets.on_host().iter_mut().take(waiting) {
            watch.time(|| bucket.receive(&mut self.compressor, presence))?;
        }
        Ok(())
    }

    fn step_flags(&self) -> StepFlags {
        StepFlags {
            comparable: self.step.micro_batches.comparable(),
            present: self.parameters.iter().map(|p| p.present).collect(),
        }
    }

    /// Gathers the parameters that are cut from device to device, between two steps. Every rank calls it alike, with its
    /// rows of each parameter and the memory of the complete ones.
    pub(crate) fn gather_on_devices(
        &mut self,
        rows: Vec<(usize, DeviceTensor)>,
        wholes: Vec<(usize, DeviceTensor)>,
    ) -> Result<(), TrainError> {
        let homes = &self.homes;
        let at_home = |(parameter, tensor): (usize, DeviceTensor)| {
            let Home { bucket, slot } = homes[parameter];
            (bucket, slot, tensor)
        };
        let Buckets::Device(buckets) = &mut self.buckets else {
            unreachable!("asked before where gradients are");
        };
        let rows = rows.into_iter().map(at_home).collect();
        buckets.gather(rows, wholes.into_iter().map(at_home).collect())
    }

    /// Begins to gather the parameters that are cut, between two steps. Every rank calls it alike.
    pub(crate) fn gather_parameters(&mut self) -> Result<ParameterGather<'_>, TrainError> {
        self.make()?;
        Ok(ParameterGather::new(&self.homes, self.buckets.on_host()))
    }

    /// Ends a step. After the second one the parameters are assigned again, in the order in which the gradients of
    /// rank 0 became final.
    pub(crate) fn end(&mut self) -> Result<(), TrainError> {
        self.buckets.end_accumulation();
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
            self.reassign(&order)?;
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

fn homes(assignments: &[Assignment], parameters: usize) -> Vec<Home> {
    let mut homes = vec![Home { bucket: 0, slot: 0 }; parameters];
    for (bucket, assignment) in assignments.iter().enumerate() {
        for (slot, &parameter) in assignment.parameters.iter().enumerate() {
            homes[parameter] = Home { bucket, slot };
        }
    }
    homes
}
