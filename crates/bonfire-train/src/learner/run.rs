//! The epochs of one rank.

use bonfire_collective::ProcessGroup;
use burn::data::dataloader::Progress;
use burn_train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingItem,
    ValidLoader,
};

use super::batches::Batches;
use super::error::LearnerError;
use super::outlook::{Outlook, Own};
use super::output::{StepOutput, gathered};
use super::records::{self, Restoring};
use super::share::Share;
use crate::parameters::is_autodiff;
use crate::patience::patient_with_files;
use crate::weights::Last;
use crate::{Ddp, DdpConfig, GradientCompression, GradientSync, Precision, World};

/// A training under way.
pub(super) struct Run<'a, M: LearnerModel> {
    world: &'a World,
    components: TrainingComponents<M>,
    learner: Learner<M>,
    config: DdpConfig,
}

/// Whether the training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    /// All ranks have agreed to stop.
    Stop,
}

impl<'a, M> Run<'a, M>
where
    M: LearnerModel,
    <M as TrainStep>::Output: StepOutput,
    <M as InferenceStep>::Output: StepOutput,
{
    pub(super) fn new(
        world: &'a World,
        config: DdpConfig,
        components: TrainingComponents<M>,
        learner: Learner<M>,
    ) -> Self {
        Self {
            world,
            components,
            learner,
            config,
        }
    }

    /// The model as it is, and what shows the metrics.
    pub(super) fn into_parts(self) -> (M, SupervisedTrainingEventProcessor<M>) {
        (self.learner.model(), self.components.event_processor)
    }

    /// Trains and validates, epoch after epoch. All errors end all ranks: the caller tells them.
    pub(super) fn train(
        &mut self,
        restoring: Restoring,
        (train, valid): (&TrainLoader<M>, &ValidLoader<M>),
        starting_epoch: usize,
    ) -> Result<(), LearnerError> {
        if self.config.sync != GradientSync::Bucketed {
            return Err(LearnerError::NotBucketed);
        }
        if self.config.precision == Precision::F16 {
            return Err(LearnerError::NotScaled);
        }
        self.warn_of_lost_compression();
        if !is_autodiff(&self.learner.model()) {
            return Err(LearnerError::NotTraining);
        }
        let device = self.world.device();
        let train = Share::of(train, self.world, &device.clone().autodiff())?;
        let valid = Share::of(valid, self.world, &device)?;
        train.skip(starting_epoch - 1);
        valid.skip(starting_epoch - 1);
        self.learner.fork(&device.autodiff());
        let mut ddp = self.replicate(restoring)?;
        for epoch in starting_epoch..=self.components.num_epochs {
            if self.epoch(epoch, &mut ddp, &train, &valid)? == Next::Stop {
                break;
            }
        }
        // Waits for the files of the last checkpoint.
        self.components.checkpointer = None;
        self.check()?;
        self.world.group().barrier()?;
        Ok(())
    }

    /// Gives all ranks the state of rank 0.
    fn replicate(&mut self, restoring: Restoring) -> Result<Ddp<M>, LearnerError> {
        // Rank 0 may be reading a checkpoint.
        let group = patient_with_files(self.world.group());
        let restored = self.components.checkpoint.is_some() && restoring == Restoring::MainRank;
        let store = &self.components.event_store;
        match (self.world.is_main(), restored) {
            // The others wait in their checkpointers.
            (true, true) => records::send(&self.learner, store, &group)?,
            (false, true) => {}
            (is_main, false) => {
                // Models that differ are an error that says how, before anything is loaded.
                drop(self.replica()?);
                if is_main {
                    records::send(&self.learner, store, &group)?;
                } else {
                    records::receive(&mut self.learner, &group)?;
                }
            }
        }
        let ddp = self.replica()?;
        ddp.guess_depth();
        Ok(ddp)
    }

    /// Burn's checkpoints have three parts, and this is none of them.
    fn warn_of_lost_compression(&self) {
        let is_resumed = self.components.checkpoint.is_some();
        if is_resumed && matches!(self.config.compression, GradientCompression::PowerSgd(_)) {
            tracing::warn!(
                "Burn's checkpoints do not keep what PowerSGD left out of the gradients so far, nor its \
                 factors: this training goes on without them, and not with the bits of one that was not \
                 interrupted; Ddp with Checkpoints keeps them"
            );
        }
    }

    fn replica(&self) -> Result<Ddp<M>, LearnerError> {
        Ok(Ddp::with_config(
            self.learner.model(),
            self.world,
            self.config,
        )?)
    }

    fn epoch(
        &mut self,
        epoch: usize,
        ddp: &mut Ddp<M>,
        train: &Share<<M as TrainStep>::Input>,
        valid: &Share<<M as InferenceStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let (epoch_number, total_items) = (epoch, train.total);
        self.tell_train(LearnerEvent::StartSplit {
            epoch_number,
            total_items,
        })?;
        let next = self.train_epoch(ddp, train)?;
        self.tell_train(LearnerEvent::EndSplit(epoch))?;
        if next == Next::Stop {
            return Ok(next);
        }
        let total_items = valid.total;
        self.tell_valid(LearnerEvent::StartSplit {
            epoch_number,
            total_items,
        })?;
        let next = self.validate(ddp, valid)?;
        self.tell_valid(LearnerEvent::EndSplit(epoch))?;
        self.tell_train(LearnerEvent::EndEpoch(epoch))?;
        if next == Next::Stop {
            return Ok(next);
        }
        self.end_epoch(epoch)
    }

    fn train_epoch(
        &mut self,
        ddp: &mut Ddp<M>,
        share: &Share<<M as TrainStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let accumulation = self.components.grad_accumulation.unwrap_or(1);
        let mut batches = Batches::of(share);
        let (mut processed, mut iteration, mut accumulated) = (0, 0, 0);
        loop {
            let (batch, more) = batches.next()?;
            let samples = batch.as_ref().map_or(0, |batch| batch.samples);
            let outlook = self.outlook(samples, more)?;
            if outlook.stop.is_some() {
                return Ok(Next::Stop);
            }
            if outlook.total() == 0 {
                return Ok(Next::GoOn);
            }
            accumulated += 1;
            let last = match accumulated >= accumulation || !outlook.more {
                true => Last::Yes,
                false => Last::No,
            };
            let step = batch.map(|batch| move |model: &M| TrainStep::step(model, batch.item).item);
            let step = ddp.run_own(samples, step, last)?;
            if let Some(gradients) = step.gradients {
                // All ranks find the same, and none has stepped.
                ddp.check_finite(&gradients)?;
                self.learner.lr_step();
                self.learner.optimizer_step(gradients);
                ddp.set_module(self.learner.model());
                accumulated = 0;
            }
            processed += outlook.total();
            iteration += 1;
            let outputs = gathered(self.world, step.output, &outlook.samples)?;
            for output in outputs {
                let progress = progress(processed, share.total);
                let lr = Some(self.learner.lr_current());
                let item = TrainingItem::new(output, progress, Some(iteration), lr);
                self.tell_train(LearnerEvent::ProcessedItem(item))?;
            }
        }
    }

    fn validate(
        &mut self,
        ddp: &Ddp<M>,
        share: &Share<<M as InferenceStep>::Input>,
    ) -> Result<Next, LearnerError> {
        let model = ddp.lowered();
        let mut batches = Batches::of(share);
        let (mut processed, mut iteration) = (0, 0);
        loop {
            let (batch, more) = batches.next()?;
            let samples = batch.as_ref().map_or(0, |batch| batch.samples);
            let outlook = self.outlook(samples, more)?;
            if outlook.stop.is_some() {
                return Ok(Next::Stop);
            }
            if outlook.total() == 0 {
                return Ok(Next::GoOn);
            }
            let output = batch.map(|batch| InferenceStep::step(&model, batch.item));
            processed += outlook.total();
            iteration += 1;
            for output in gathered(self.world, output, &outlook.samples)? {
                let progress = progress(processed, share.total);
                let item = TrainingItem::new(output, progress, Some(iteration), None);
                self.tell_valid(LearnerEvent::ProcessedItem(item))?;
            }
        }
    }

    /// Saves on rank 0, and asks it whether the metrics of all ranks are a reason to stop.
    fn end_epoch(&mut self, epoch: usize) -> Result<Next, LearnerError> {
        let mut early = false;
        let components = &mut self.components;
        if self.world.is_main() {
            let flushed = components.event_processor.flush();
            components.interrupter.fail_on_error(flushed);
            if !components.interrupter.should_stop() {
                let store = &components.event_store;
                if let Some(checkpointer) = &mut components.checkpointer {
                    checkpointer.checkpoint(&self.learner, epoch, store);
                }
                if let Some(early_stopping) = &mut components.early_stopping {
                    early = early_stopping.should_stop(epoch, store);
                }
            }
        }
        // The early stop of rank 0 is told as that rank having no more.
        let patient = patient_with_files(self.world.group());
        let outlook = self.outlook_of(&patient, usize::from(early), false)?;
        if outlook.stop.is_some() || outlook.total() > 0 {
            return Ok(Next::Stop);
        }
        Ok(Next::GoOn)
    }

    /// Asks all ranks what comes. A stop that any of them was asked for is one on all.
    #[track_caller]
    fn outlook(&self, samples: usize, more: bool) -> Result<Outlook, LearnerError> {
        self.outlook_of(self.world.group(), samples, more)
    }

    #[track_caller]
    fn outlook_of(
        &self,
        group: &ProcessGroup,
        samples: usize,
        more: bool,
    ) -> Result<Outlook, LearnerError> {
        self.check()?;
        let interrupter = &self.components.interrupter;
        let stop = interrupter.should_stop();
        let own = Own {
            samples,
            more,
            stop,
        };
        let outlook = Outlook::of(group, own)?;
        if let Some(rank) = outlook.stop
            && !stop
        {
            interrupter.stop(Some(&format!("rank {rank} was asked to stop")));
        }
        Ok(outlook)
    }

    /// What failed in the threads of the learner.
    fn check(&self) -> Result<(), LearnerError> {
        match self.components.interrupter.error() {
            Some(error) => Err(LearnerError::Learner(error)),
            None => Ok(()),
        }
    }

    fn tell_train(
        &mut self,
        event: LearnerEvent<<M as TrainStep>::Output>,
    ) -> Result<(), LearnerError> {
        if self.world.is_main() {
            let told = self.components.event_processor.process_train(event);
            self.components.interrupter.fail_on_error(told);
        }
        self.check()
    }

    fn tell_valid(
        &mut self,
        event: LearnerEvent<<M as InferenceStep>::Output>,
    ) -> Result<(), LearnerError> {
        if self.world.is_main() {
            let told = self.components.event_processor.process_valid(event);
            self.components.interrupter.fail_on_error(told);
        }
        self.check()
    }
}

fn progress(processed: usize, total: usize) -> Progress {
    Progress::new(processed, total, Some("items".to_owned()))
}
