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
use crate::run::Run;

/// Returns a strategy of data-parallel training over the ranks of `world`.
pub(crate) fn strategy<M: DistributedModel>(
    world: &World,
    config: LearnerConfig,
) -> TrainingStrategy<M> {
    TrainingStrategy::Custom(Arc::new(Distributed { world: world.clone(), config }))
}

struct Distributed {
    world: World,
    config: LearnerConfig,
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
        let trained = group
            .abort_on_panic(|| run.train(&dataloader_train, &dataloader_valid, starting_epoch));
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
