//! A training strategy for Burn's own learner, `burn::train::SupervisedTraining`: one rank per device.
//!
//! Every rank runs the learner with its own share of the data; gradients are averaged through
//! [`Ddp`](crate::Ddp)'s buckets while `TrainStep::step` runs its backward pass. Rank 0 sees the
//! losses of all ranks, or all that they computed ([`Outputs`]), so its checkpoints, early stopping and
//! display are those of the whole training; the other ranks do as it says. Between two steps all ranks say how many samples
//! they have and whether somebody wants to stop, so none waits for one that has finished.

mod batches;
mod config;
mod error;
mod kept;
mod model;
mod outlook;
mod output;
mod parcel;
mod records;
mod run;
mod setup;
mod share;
mod silence;
mod split;
mod timings;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};

use bonfire_collective::{Interrupt, InterruptWatch};
use burn_train::{
    EventProcessorTraining, Interrupter, Interruption, Learner, LearningResult,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    TrainingError, TrainingStrategy, ValidLoader,
};

use crate::World;
use crate::interrupt::watch_with;
use crate::panic::panic_message;

pub use config::{GradientCheck, LearnerConfig};
pub use error::LearnerError;
pub use kept::CompressionCheckpoints;
pub use model::DistributedModel;
pub use output::{Outputs, StepOutput, counted};
pub use parcel::Parcel;
pub use silence::DistributedTraining;
pub use timings::{StepTimeMetric, StepTimings};

use records::Restoring;
use run::Run;

/// Data-parallel training over the ranks of `world`, for `SupervisedTraining::with_training_strategy`.
/// Every rank calls it, in the same program with the same settings.
///
/// The loaders given to the learner are divided: rank r gets the r-th slice of each. Burn's loaders
/// then shuffle within their slice; `bonfire::DealtLoader` deals the whole data set anew every epoch. A loader
/// that cannot be sliced is an error, [`LearnerError::NotSliced`].
///
/// [`DistributedTraining::distributed`] is this and silences the learner on all ranks but 0.
///
/// # Errors
/// What ends the training early is `LearningResult::error` on every rank; on the others it names the
/// rank at fault. So do averaged gradients that are infinite or no numbers, before they reach the
/// optimizer.
#[must_use]
pub fn strategy<M: DistributedModel>(world: &World) -> TrainingStrategy<M> {
    strategy_with(world, LearnerConfig::default())
}

/// As [`strategy`], with gradients that travel as `config` says, which may be a
/// [`DdpConfig`](crate::DdpConfig) alone: bucket sizes, compression, precision.
/// A step does not show its loss, so they travel in buckets; [`GradientSync::Naive`](crate::GradientSync::Naive) is
/// [`LearnerError::NotBucketed`]. Nor can its loss be scaled: [`Precision::F16`](crate::Precision::F16) is
/// [`LearnerError::NotScaled`]. What [`GradientCompression::PowerSgd`](crate::GradientCompression::PowerSgd)
/// has left out so far is in no checkpoint of Burn: [`CompressionCheckpoints`] keep it, and a training
/// that resumes without them says so. [`StepTimings`] tell where the time of the steps goes.
///
/// # Errors
/// See [`strategy`].
#[must_use]
pub fn strategy_with<M: DistributedModel>(
    world: &World,
    config: impl Into<LearnerConfig>,
) -> TrainingStrategy<M> {
    strategy_of(world, config.into(), Restoring::EveryRank)
}

fn strategy_of<M: DistributedModel>(
    world: &World,
    config: LearnerConfig,
    restoring: Restoring,
) -> TrainingStrategy<M> {
    let world = world.clone();
    TrainingStrategy::Custom(Arc::new(Distributed {
        world,
        config,
        restoring,
    }))
}

/// The strategy of one rank.
struct Distributed {
    world: World,
    config: LearnerConfig,
    restoring: Restoring,
}

impl<M: DistributedModel> SupervisedLearningStrategy<M> for Distributed {
    /// As Burn's on rank 0; the others tell their display nothing.
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        if self.world.is_main() {
            let end = OnceLock::new();
            let main = Main {
                strategy: self,
                end: &end,
            };
            let result = main.train(learner, dataloader_train, dataloader_valid, components);
            return match end.into_inner() {
                Some(end) => end.complete(result),
                None => result,
            };
        }
        let starting_epoch = components.checkpoint.unwrap_or(0) + 1;
        let interrupter = components.interrupter.clone();
        let (model, processor) = self.fit(
            components,
            learner,
            dataloader_train,
            dataloader_valid,
            starting_epoch,
        );
        LearningResult {
            model: model.valid(),
            renderer: processor.renderer(),
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let _interrupts = stop_on_interrupt(&interrupter);
        let mut run = Run::new(&self.world, &self.config, components, learner);
        // After a panic nothing of the run is used.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let loaders = (&dataloader_train, &dataloader_valid);
            run.train(self.restoring, loaders, starting_epoch)
        }));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.world.group().abort(&error.to_string());
                error.stop(&interrupter, self.world.rank());
            }
            Err(panic) => {
                let said = format!("panicked: {}", panic_message(&*panic));
                self.world.group().abort(&said);
                resume_unwind(panic);
            }
        }
        run.into_parts()
    }
}

/// Ctrl-C and SIGTERM stop the learner, as if its program had. A program that watches the signals itself
/// keeps them, and has `SupervisedTraining::interrupter` to tell.
fn stop_on_interrupt(interrupter: &Interrupter) -> Option<InterruptWatch> {
    let interrupter = interrupter.clone();
    watch_with(move |by| {
        let name = match by {
            Interrupt::Interrupt => "SIGINT",
            Interrupt::Terminate => "SIGTERM",
        };
        interrupter.stop(Some(&format!("asked to stop by {name}")));
    })
}

/// How the training of a rank ended, as long as its learner still knows.
struct End {
    interrupted: Option<Interruption>,
    error: Option<Arc<TrainingError>>,
}

impl End {
    fn of(interrupter: &Interrupter) -> Self {
        Self {
            interrupted: interrupter.interruption(),
            error: interrupter.error(),
        }
    }

    /// Puts back what Burn's terminal display makes the learner forget when the training is over.
    fn complete<M>(self, mut result: LearningResult<M>) -> LearningResult<M> {
        result.error = self.error.or(result.error);
        if result.error.is_none() {
            result.interrupted = self.interrupted.or(result.interrupted);
        }
        result
    }
}

/// The strategy of rank 0, around which Burn does what it always does.
struct Main<'a> {
    strategy: &'a Distributed,
    end: &'a OnceLock<End>,
}

impl<M: DistributedModel> SupervisedLearningStrategy<M> for Main<'_> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let fitted = self.strategy.fit(
            components,
            learner,
            dataloader_train,
            dataloader_valid,
            starting_epoch,
        );
        self.end.get_or_init(|| End::of(&interrupter));
        fitted
    }
}

#[cfg(test)]
mod tests;
