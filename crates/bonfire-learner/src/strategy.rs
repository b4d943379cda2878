//! The strategy of a rank, for `SupervisedTraining::with_training_strategy`.

use std::sync::{Arc, OnceLock};

use bonfire_launch::StopRequest;
use bonfire_train::World;
use burn_train::{
    EventProcessorTraining, Interrupter, Interruption, Learner, LearningResult,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    TrainingError, TrainingStrategy, ValidLoader,
};

use crate::config::LearnerConfig;
use crate::model::DistributedModel;
use crate::records::Restoring;
use crate::run::Run;

/// Returns a strategy of data-parallel training over the ranks of `world`, for
/// `SupervisedTraining::with_training_strategy`. Every rank calls it, in the same program with the same settings.
///
/// The loaders given to the learner are divided: rank r gets the r-th slice of each. Burn's loaders then shuffle
/// within their slice; `bonfire::data::DatasetLoader` distributes the complete data set again every epoch. A loader that
/// cannot be sliced is an error, [`LearnerError::NotSliced`](crate::LearnerError::NotSliced).
///
/// [`DistributedTraining::distributed`](crate::DistributedTraining::distributed) is this and silences
/// the learner on all ranks but 0.
///
/// # Errors
/// An error that ends the training is `LearningResult::error` on every rank; on the others it names the rank at fault.
/// Averaged gradients that are infinite or NaN are such an error, before they reach the optimizer.
#[must_use]
pub fn strategy<M: DistributedModel>(world: &World) -> TrainingStrategy<M> {
    strategy_with(world, LearnerConfig::default())
}

/// Returns a strategy like [`strategy`]'s, which averages gradients as `config` says. A
/// [`DdpConfig`](bonfire_train::DdpConfig) converts into it: bucket sizes, compression, precision. A step does not
/// show its loss, which therefore cannot be scaled: [`Precision::F16`](bonfire_train::Precision::F16) is
/// [`LearnerError::NotScaled`](crate::LearnerError::NotScaled). Burn's checkpoints lack the error feedback of
/// [`GradientCompression::PowerSgd`](bonfire_train::GradientCompression::PowerSgd):
/// [`CompressionCheckpoints`](crate::CompressionCheckpoints) save it, and a training that resumes without them warns.
/// [`StepTimings`](crate::StepTimings) record the time of the steps.
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

pub(crate) fn strategy_of<M: DistributedModel>(
    world: &World,
    config: LearnerConfig,
    restoring: Restoring,
) -> TrainingStrategy<M> {
    let world = world.clone();
    TrainingStrategy::Custom(Arc::new(Distributed { world, config, restoring }))
}

struct Distributed {
    world: World,
    config: LearnerConfig,
    restoring: Restoring,
}

impl<M: DistributedModel> SupervisedLearningStrategy<M> for Distributed {
    /// Trains as Burn does on rank 0; the other ranks show nothing.
    fn train(
        &self,
        learner: Learner<M>,
        dataloader_train: TrainLoader<M>,
        dataloader_valid: ValidLoader<M>,
        components: TrainingComponents<M>,
    ) -> LearningResult<M> {
        if self.world.is_main() {
            let main = Main { strategy: self, end: OnceLock::new() };
            let result = main.train(learner, dataloader_train, dataloader_valid, components);
            return match main.end.into_inner() {
                Some(end) => end.complete(result),
                None => result,
            };
        }
        let starting_epoch = components.checkpoint.unwrap_or(0) + 1;
        let interrupter = components.interrupter.clone();
        let (model, processor) =
            self.fit(components, learner, dataloader_train, dataloader_valid, starting_epoch);
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
        let mut run = Run { world: &self.world, components, learner, config: &self.config };
        let group = self.world.group();
        let trained = group.abort_on_panic(|| {
            run.train(self.restoring, &dataloader_train, &dataloader_valid, starting_epoch)
        });
        if let Err(error) = group.or_abort(trained) {
            error.stop(&interrupter, group.rank());
        }
        (run.learner.model(), run.components.event_processor)
    }
}

/// Ctrl-C, SIGTERM and SIGHUP stop the learner, as if its program had. A program that watches the signals itself keeps
/// them, and stops by `SupervisedTraining::interrupter`.
fn stop_on_interrupt(interrupter: &Interrupter) -> StopRequest {
    let interrupter = interrupter.clone();
    StopRequest::watch_with(move |by| {
        interrupter.stop(Some(&format!("asked to stop by {by}")));
    })
}

struct End {
    interrupted: Option<Interruption>,
    error: Option<Arc<TrainingError>>,
}

impl End {
    /// Restores the values that Burn's terminal display makes the learner forget when the training is over.
    fn complete<M>(self, mut result: LearningResult<M>) -> LearningResult<M> {
        result.error = self.error.or(result.error);
        if result.error.is_none() {
            result.interrupted = self.interrupted.or(result.interrupted);
        }
        result
    }
}

struct Main<'a> {
    strategy: &'a Distributed,
    end: OnceLock<End>,
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
        let (interrupted, error) = (interrupter.interruption(), interrupter.error());
        self.end.get_or_init(|| End { interrupted, error });
        fitted
    }
}
