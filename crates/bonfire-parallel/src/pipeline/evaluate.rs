//! Forward passes alone: validation.
//!
//! A rank runs one stage after the other, each for as many micro-batches as a step has, while messages are sent. No
//! backward pass needs an activation, so there is nothing to order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bonfire_plan::pipeline::{Compute, Pass as PassKind};
use burn::module::Module;
use burn::tensor::{Device, TensorData};

use super::Pipeline;
use super::channels::Agreed;
use super::error::PipelineError;
use super::output::{IntoOutput, loss_value};
use super::pass::Pass;
use super::run::ended;
use super::weights::WeightGradients;

impl<M: Module> Pipeline<M> {
    /// Returns the loss of each micro-batch, the same on all ranks of the pipeline, from forward passes alone: without
    /// autodiff, as [`valid`](burn::module::Module::valid) modules, on tensors that have none. `forward` is that of
    /// [`backward`](Self::backward).
    ///
    /// All ranks of a pipeline call it with as many micro-batches; those that have other data may have more or fewer.
    /// Micro-batches may be of different sizes: their mean over samples is that of `loss x samples`. A rank holds the
    /// activations at its boundaries for as many of them as a step has.
    ///
    /// # Errors
    /// [`PipelineError::MicroBatches`] if another rank has more or fewer micro-batches; else as
    /// [`backward`](Self::backward). The pipeline has ended then, on all ranks.
    ///
    /// # Panics
    /// If `forward` panics, after reporting it to the other ranks.
    #[track_caller]
    pub fn evaluate<B, R: IntoOutput>(
        &mut self,
        micro_batches: &[B],
        forward: impl Fn(&M, &mut Pass<'_, B>) -> R,
    ) -> Result<Vec<f64>, PipelineError> {
        let losses = self.try_evaluate(micro_batches, forward);
        self.or_abort(losses)
    }

    #[track_caller]
    fn try_evaluate<B, R: IntoOutput>(
        &mut self,
        micro_batches: &[B],
        forward: impl Fn(&M, &mut Pass<'_, B>) -> R,
    ) -> Result<Vec<f64>, PipelineError> {
        self.ddp.wait()?;
        let (found, world) = (micro_batches.len(), self.world.clone());
        let all: Vec<u64> = world.group().all_gather(&[found as u64])?;
        if all[0] != found as u64 {
            let expected = u32::try_from(all[0]).unwrap_or(u32::MAX);
            return Err(PipelineError::MicroBatches { found, expected });
        }
        let stages: Vec<M> = self.stages().iter().map(Module::valid).collect();
        let mut current = None;
        let forwards = || -> Result<_, PipelineError> {
            let mut losses = Vec::new();
            for micro_batches in micro_batches.chunks(self.schedule.micro_batches() as usize) {
                losses.extend(self.round(&stages, micro_batches, &forward, &mut current)?);
            }
            Ok(losses)
        };
        let outcome = catch_unwind(AssertUnwindSafe(forwards));
        let mut losses = ended(outcome, current, &self.channels)?;
        losses.resize(found, 0.0);
        let last = self.schedule.owner(self.schedule.stages() - 1);
        world.group().broadcast(&mut losses, last)?;
        Ok(losses)
    }

    /// The losses of some micro-batches; empty on ranks without the last stage.
    fn round<B, R: IntoOutput>(
        &mut self,
        stages: &[M],
        micro_batches: &[B],
        forward: &impl Fn(&M, &mut Pass<'_, B>) -> R,
        current: &mut Option<Compute>,
    ) -> Result<Vec<f64>, PipelineError> {
        let (me, schedule) = (self.world.rank(), &self.schedule);
        let mut losses = Vec::new();
        // What a stage hands to the next one on this rank.
        let mut made: VecDeque<Vec<TensorData>> = VecDeque::new();
        for (local, (stage, &number)) in stages.iter().zip(&self.numbers).enumerate() {
            let source = number.checked_sub(1).map(|before| schedule.owner(before));
            let source = source.filter(|&source| source != me);
            let receive = |source| self.channels.receive_described(source);
            let mut receiving: VecDeque<_> =
                micro_batches.iter().filter_map(|_| source.map(receive)).collect();
            let device: Device = self.devices[local].clone().without_autodiff();
            for (micro_batch, batch) in (0..).zip(micro_batches) {
                let inputs = match receiving.pop_front() {
                    Some(work) => self.channels.wait(work)?,
                    None => made.pop_front().unwrap_or_default(),
                };
                let compute = Compute { pass: PassKind::Forward, stage: number, micro_batch };
                *current = Some(compute);
                let mut pass = Pass {
                    compute,
                    stages: schedule.stages(),
                    micro_batch: batch,
                    device: &device,
                    inputs,
                    leaves: Vec::new(),
                    tied: self.tie.as_ref().and_then(|tie| tie.values.as_deref()),
                    tied_leaves: Vec::new(),
                    weights: WeightGradients::at_once(),
                };
                let output = forward(stage, &mut pass)
                    .into_output()
                    .map_err(|source| PipelineError::Forward { pass: compute, source })?;
                if number + 1 == schedule.stages() {
                    losses.push(loss_value(output.loss()?)?);
                    continue;
                }
                match schedule.owner(number + 1) {
                    target if target == me => made.push_back(output.values()?),
                    target => self.channels.send(target, output.values()?, Agreed::Now),
                }
                self.channels.release_sent()?;
            }
        }
        self.channels.finish()?;
        Ok(losses)
    }
}
