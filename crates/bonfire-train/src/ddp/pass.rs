//! A forward and a backward pass, and the averaging of their gradients.

use std::sync::Arc;
use std::time::Instant;

use burn::Tensor;
use burn::module::Module;

use super::foreign::Watch;
use super::gather::Gatherer;
use super::{Ddp, MODULE_PRESENT, MicroStep, Step};
use crate::loss::weights::MicroBatches;
use crate::loss::{IntoLoss, Weight};
use crate::reducer::collect::{Site, collect, own};
use crate::reducer::hooks::{Listener, Pass, measured};
use crate::reducer::timing::{StepTiming, Stopwatch};
use crate::{Gradients, Sharding, TrainError};

impl<M: Module> Ddp<M> {
    /// Runs the forward pass. The graph does not depend on the listener, so neither do the bits of the gradients.
    pub(super) fn pass<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
        listener: &Listener,
    ) -> Result<(Start, MicroStep<L::Output>), TrainError> {
        let watch = Watch::start();
        let module = self.module.as_ref().expect(MODULE_PRESENT);
        let site = self.reducer.lock().site();
        let pass = Pass {
            listener,
            precision: self.config.precision,
            // Averages take their memory on a device.
            keeps_gradients: site == Site::Device
                && self.config.placement.gradients == Sharding::Replicated,
            gathered: self.gatherer.as_deref().map(Gatherer::shards),
        };
        let hooked = self.anchors.attach(module, &self.table, &self.depth, pass)?;
        if let Some(gatherer) = &self.gatherer {
            gatherer.begin(module, self.config.precision);
        }
        let (loss, output) = forward(&hooked).into_loss().map_err(TrainError::Forward)?;
        let (tensor, loss) = loss.split()?;
        let weight = loss.weight();
        let has_cut = (0..self.table.len()).any(|parameter| self.shards.is_cut(parameter));
        if weight == Weight::Samples(0) && self.gatherer.is_some() && has_cut {
            return Err(TrainError::unsupported(
                self.config.placement,
                "this rank's loss counts no samples, so it runs no backward pass, in which the others gather \
                 parameters: give each rank samples in every step",
            ));
        }
        self.micro_batches.add(weight)?;
        self.norm_groups.weigh(weight.count() as f64);
        // Without samples, or without a parameter in it, a loss has no gradients that count.
        let tensor = if weight != Weight::Samples(0) && tensor.is_tracked() {
            Some(watch.on(measured(tensor, &self.depth)?)?)
        } else {
            None
        };
        let start = Start { tensor, weight, watch };
        Ok((start, MicroStep { loss, output }))
    }

    pub(super) fn accumulate<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<MicroStep<L::Output>, TrainError> {
        let begin = Instant::now();
        let listener = Listener::Reducer(Arc::downgrade(&self.reducer));
        let (start, step) = self.pass(forward, &listener)?;
        let scale = self.micro_batches.scale(start.weight);
        self.reducer.lock().begin_accumulating(scale)?;
        let gradients = self.backward_pass(start)?;
        if let Some(failure) = self.norm_groups.failure() {
            return Err(failure);
        }
        let mut reducer = self.reducer.lock();
        reducer.check()?;
        collect(self.module(), &self.table, gradients.as_ref(), &mut reducer)?;
        reducer.end_accumulating()?;
        self.forward_backward += begin.elapsed();
        Ok(step)
    }

    #[track_caller]
    pub(super) fn synchronise<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<Step<L::Output>, TrainError> {
        let begin = Instant::now();
        let mut watch = Stopwatch::default();
        let (gradients, MicroStep { loss, output }) = if self.is_alone() {
            let (start, step) = self.pass(forward, &Listener::Nobody)?;
            (self.step_alone(start, begin)?, step)
        } else {
            let listener = Listener::Reducer(Arc::downgrade(&self.reducer));
            let (start, step) = self.pass(forward, &listener)?;
            self.begin_sending(start.weight, &mut watch)?;
            let gradients = self.backward_pass(start)?;
            (self.settle(gradients, begin, &mut watch)?, step)
        };
        Ok(Step { gradients, loss, output, timing: self.end_step(watch)? })
    }

    pub(super) fn begin_sending(
        &self,
        weight: Weight,
        watch: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        let micro_batches = self.micro_batches;
        let mut normalizer = micro_batches.normalizer(&self.group);
        if self.gatherer.is_some() {
            // Buckets leave between gathers, in the same order on all ranks: nothing may depend on when
            // other ranks answer.
            watch.time(|| normalizer.factor())?;
        }
        let (scale, exchanges) = (micro_batches.scale(weight), self.norm_groups.are_used());
        self.reducer.lock().begin(micro_batches, scale, normalizer, exchanges)
    }

    /// Averages the gradients of a step that began at `begin`, after its backward pass. Parameters without a gradient
    /// count as zero.
    pub(super) fn settle(
        &mut self,
        gradients: Option<burn::tensor::Gradients>,
        begin: Instant,
        watch: &mut Stopwatch,
    ) -> Result<Gradients, TrainError> {
        self.reducer.lock().check()?;
        self.norm_groups.end_step()?;
        let (module, none) = (self.module(), self.no_gradients());
        let mut reducer = self.reducer.lock();
        collect(module, &self.table, gradients.as_ref(), &mut reducer)?;
        let forward_backward = begin.elapsed().saturating_sub(reducer.waited());
        watch.add(reducer.waited());
        reducer.settle(watch)?;
        let averages = reducer.averages(module, none, gradients, watch)?;
        reducer.end()?;
        self.forward_backward += forward_backward + reducer.computed();
        Ok(averages)
    }

    /// Ends a step with averages: the ranks agree on buffers. Returns the time of the step.
    pub(super) fn end_step(&mut self, mut watch: Stopwatch) -> Result<StepTiming, TrainError> {
        let presence = self.micro_batches.presence();
        watch.time(|| self.agree_on_buffers(presence))?;
        self.micro_batches = MicroBatches::default();
        Ok(StepTiming {
            forward_backward: std::mem::take(&mut self.forward_backward),
            exposed_communication: watch.total(),
        })
    }

    pub(super) fn backward_pass(
        &self,
        start: Start,
    ) -> Result<Option<burn::tensor::Gradients>, TrainError> {
        let gradients = start.backward(self.module())?;
        if let Some(gatherer) = &self.gatherer {
            gatherer.end()?;
        }
        Ok(gradients)
    }

    /// Returns true if the gradients of the next batch are the averages: there is no other rank, no earlier
    /// micro-batch to add to them, and no parameter elsewhere than its gradient.
    pub(super) fn is_alone(&self) -> bool {
        let is_one = self.group.world_size().get() == 1;
        is_one && self.micro_batches.is_empty() && !self.shards.are_offloaded()
    }

    /// Gradients that stay where they are: without a copy, and without waiting for the device.
    pub(super) fn step_alone(
        &mut self,
        start: Start,
        begin: Instant,
    ) -> Result<Gradients, TrainError> {
        if start.weight == Weight::Samples(0) {
            return Err(TrainError::NoSamples);
        }
        let gradients = start.backward(self.module())?;
        self.norm_groups.end_step()?;
        let own = own(self.module(), &self.table, gradients);
        self.forward_backward += begin.elapsed();
        Ok(own)
    }
}

pub(super) struct Start {
    /// `None` if the pass has no gradients that count.
    tensor: Option<Tensor<1>>,
    pub(super) weight: Weight,
    watch: Watch,
}

impl Start {
    pub(super) fn backward<M: Module>(
        self,
        module: &M,
    ) -> Result<Option<burn::tensor::Gradients>, TrainError> {
        let gradients = self.tensor.map(|loss| loss.backward());
        self.watch.check(module)?;
        Ok(gradients)
    }
}
