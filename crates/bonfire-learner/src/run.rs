//! The epochs of one rank.

mod setup;

use std::ops::ControlFlow;

use bonfire_collective::ProcessGroup;
use bonfire_train::{Ddp, Last, World, is_autodiff, with_file_timeout};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_train::{
    EventProcessorError, EventProcessorTraining, InferenceStep, Learner, LearnerEvent,
    LearnerModel, SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents,
    TrainingItem, ValidLoader,
};

use crate::config::{GradientCheck, LearnerConfig};
use crate::error::LearnerError;
use crate::local_batches::LocalBatches;
use crate::local_batches::batches::{Split, Turn};
use crate::local_batches::step_agreement::{OwnStep, StepAgreement};
use crate::model::DistributedModel;
use crate::output::{Sent, StepOutput, gathered};

pub(crate) struct Run<'a, M: LearnerModel> {
    pub(crate) world: &'a World,
    pub(crate) components: TrainingComponents<M>,
    pub(crate) learner: Learner<M>,
    pub(crate) config: &'a LearnerConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Stop,
}

impl<M: DistributedModel> Run<'_, M> {
    /// Trains and validates, epoch after epoch. All errors end all ranks: the caller reports them to the others.
    pub(crate) fn train(
        &mut self,
        train: &TrainLoader<M>,
        valid: &ValidLoader<M>,
        starting_epoch: usize,
    ) -> Result<(), LearnerError> {
        self.check_config()?;
        if !is_autodiff(&self.learner.model()) {
            return Err(LearnerError::NotTraining);
        }
        let device = self.world.device();
        let train = LocalBatches::of(train, self.world, &device.clone().autodiff())?;
        let valid = LocalBatches::of(valid, self.world, &device)?;
        train.skip(starting_epoch - 1);
        valid.skip(starting_epoch - 1);
        self.learner.fork(&device.autodiff());
        let mut ddp = self.replicate()?;
        for epoch in starting_epoch..=self.components.num_epochs {
            if self.epoch(epoch, &mut ddp, &train, &valid)? == Next::Stop {
                break;
            }
        }
        ddp.wait()?;
        // Dropping it waits for the files of the last checkpoint.
        self.components.checkpointer = None;
        self.check()?;
        self.world.group().barrier()?;
        Ok(())
    }

    fn epoch(
        &mut self,
        epoch: usize,
        ddp: &mut Ddp<M>,
        train: &LocalBatches<<M as TrainStep>::Input>,
        valid: &LocalBatches<<M as InferenceStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let (epoch_number, total_items) = (epoch, train.total);
        self.tell_train(LearnerEvent::StartSplit { epoch_number, total_items })?;
        let next = self.train_epoch(ddp, train)?;
        self.tell_train(LearnerEvent::EndSplit(epoch))?;
        if next == Next::Stop {
            return Ok(next);
        }
        let total_items = valid.total;
        self.tell_valid(LearnerEvent::StartSplit { epoch_number, total_items })?;
        let next = self.validate(ddp, valid)?;
        self.tell_valid(LearnerEvent::EndSplit(epoch))?;
        self.tell_train(LearnerEvent::EndEpoch(epoch))?;
        if next == Next::Stop {
            return Ok(next);
        }
        self.end_epoch(epoch, ddp)
    }

    fn train_epoch(
        &mut self,
        ddp: &mut Ddp<M>,
        local: &LocalBatches<<M as TrainStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let accumulation = self.components.grad_accumulation.unwrap_or(1);
        let mut split = Split::of(local);
        let mut accumulated = 0;
        loop {
            let Turn { batch, agreement } = match self.turn(&mut split)? {
                ControlFlow::Continue(turn) => turn,
                ControlFlow::Break(next) => return Ok(next),
            };
            accumulated += 1;
            let last =
                if accumulated >= accumulation || !agreement.more { Last::Yes } else { Last::No };
            let samples = batch.as_ref().map_or(0, |batch| batch.samples);
            let step = batch.map(|batch| move |model: &M| TrainStep::step(model, batch.item).item);
            let step = ddp.run_own(samples, step, last)?;
            if let Some((gradients, timing)) = step.synchronised {
                if self.config.check == GradientCheck::EveryStep {
                    // All ranks find the same, and none has stepped.
                    gradients.check_finite()?;
                }
                self.learner.lr_step();
                self.learner.optimizer_step(gradients.into());
                ddp.set_module(self.learner.model());
                accumulated = 0;
                if let Some(timings) = &self.config.timings {
                    timings.book(self.world, timing)?;
                }
            }
            let lr = Some(self.learner.lr_current());
            let sent = self.config.outputs.of_training();
            for item in self.items(sent, step.output, &agreement, &split, lr)? {
                self.tell_train(item)?;
            }
        }
    }

    fn validate(
        &mut self,
        ddp: &mut Ddp<M>,
        local: &LocalBatches<<M as InferenceStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let model = ddp.lowered()?;
        let mut split = Split::of(local);
        loop {
            let Turn { batch, agreement } = match self.turn(&mut split)? {
                ControlFlow::Continue(turn) => turn,
                ControlFlow::Break(next) => return Ok(next),
            };
            let output = batch.map(|batch| InferenceStep::step(&model, batch.item));
            let sent = self.config.outputs.of_validation();
            for item in self.items(sent, output, &agreement, &split, None)? {
                self.tell_valid(item)?;
            }
        }
    }

    fn turn<O>(
        &self,
        split: &mut Split<'_, O>,
    ) -> Result<ControlFlow<Next, Turn<O>>, LearnerError> {
        let (batch, more) = split.batches.next()?;
        let samples = batch.as_ref().map_or(0, |batch| batch.samples);
        let agreement = self.agreement(self.world.group(), samples, more)?;
        Ok(match (agreement.stop, agreement.total()) {
            (Some(_), _) => ControlFlow::Break(Next::Stop),
            (None, 0) => ControlFlow::Break(Next::GoOn),
            (None, samples) => {
                split.advance(samples);
                ControlFlow::Continue(Turn { batch, agreement })
            }
        })
    }

    /// The items of a step for the metrics, on rank 0.
    fn items<T: StepOutput>(
        &self,
        sent: Sent,
        output: Option<T>,
        agreement: &StepAgreement,
        split: &Split<'_, impl Sized>,
        lr: Option<ModuleLearningRate>,
    ) -> Result<Vec<LearnerEvent<T>>, LearnerError> {
        let outputs = gathered(self.world, sent, output, &agreement.samples)?;
        let item = |output| {
            let (progress, iteration) = (split.progress(), Some(split.iteration));
            LearnerEvent::ProcessedItem(TrainingItem::new(output, progress, iteration, lr.clone()))
        };
        Ok(outputs.into_iter().map(item).collect())
    }

    /// Saves on rank 0, and lets it decide if the metrics of all ranks are a reason to stop.
    fn end_epoch(&mut self, epoch: usize, ddp: &Ddp<M>) -> Result<Next, LearnerError> {
        let (mut early, mut asked) = (false, false);
        let components = &mut self.components;
        if self.world.is_main() {
            let flushed = components.event_processor.flush();
            components.interrupter.fail_on_error(flushed);
            if !components.interrupter.should_stop() {
                let store = &components.event_store;
                if let Some(checkpointer) = &mut components.checkpointer {
                    checkpointer.checkpoint(&self.learner, epoch, store);
                    asked = true;
                }
                if let Some(early_stopping) = &mut components.early_stopping {
                    early = early_stopping.should_stop(epoch, store);
                }
            }
        }
        if let Some(checkpoints) =
            self.config.compression_checkpoints.as_ref().filter(|_| self.compresses())
        {
            checkpoints.end_epoch(epoch, asked, ddp, self.world)?;
        }
        // The early stop of rank 0 is sent as that rank having no more batches.
        let patient = with_file_timeout(self.world.group(), ddp.module());
        let agreement = self.agreement(&patient, usize::from(early), false)?;
        let stops = agreement.stop.is_some() || agreement.total() > 0;
        Ok(if stops { Next::Stop } else { Next::GoOn })
    }

    /// Exchanges what the ranks bring to the next step. A stop that any of them requests is one on all.
    #[track_caller]
    fn agreement(
        &self,
        group: &ProcessGroup,
        samples: usize,
        more: bool,
    ) -> Result<StepAgreement, LearnerError> {
        self.check()?;
        let interrupter = &self.components.interrupter;
        let stop = interrupter.should_stop();
        let agreement = StepAgreement::of(group, OwnStep { samples, more, stop })?;
        if let Some(rank) = agreement.stop
            && !stop
        {
            interrupter.stop(Some(&format!("rank {rank} was asked to stop")));
        }
        Ok(agreement)
    }

    fn check(&self) -> Result<(), LearnerError> {
        let error = self.components.interrupter.error();
        error.map_or(Ok(()), |error| Err(LearnerError::Learner(error)))
    }

    fn tell_train(
        &mut self,
        event: LearnerEvent<<M as TrainStep>::Output>,
    ) -> Result<(), LearnerError> {
        self.tell(|processor| processor.process_train(event))
    }

    fn tell_valid(
        &mut self,
        event: LearnerEvent<<M as InferenceStep>::Output>,
    ) -> Result<(), LearnerError> {
        self.tell(|processor| processor.process_valid(event))
    }

    fn tell(
        &mut self,
        event: impl FnOnce(&mut SupervisedTrainingEventProcessor<M>) -> Result<(), EventProcessorError>,
    ) -> Result<(), LearnerError> {
        if self.world.is_main() {
            let processed = event(&mut self.components.event_processor);
            self.components.interrupter.fail_on_error(processed);
        }
        self.check()
    }
}
