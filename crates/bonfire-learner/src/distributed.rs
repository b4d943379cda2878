//! A learner that shows and writes on rank 0 only.

use std::error::Error;

use bonfire_launch::claim_terminal;
use burn_train::logger::{EvaluationProgressLogger, InMemoryMetricLogger, TrainingProgressLogger};
use burn_train::metric::MetricDefinition;
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn_train::{LearnerSummary, SupervisedTraining};
use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;

use crate::config::LearnerConfig;
use crate::model::DistributedModel;
use crate::records::FromMain;
use crate::strategy::strategy;
use bonfire_train::World;

/// Lets `burn::train::SupervisedTraining` train on several ranks.
pub trait DistributedTraining: Sized {
    /// Trains data-parallel on the ranks of `world`. Rank 0 shows, logs and writes checkpoints as it would alone; all
    /// others are silent, whatever was set before, and need no file: with `.checkpoint(epoch)` rank 0 reads for all.
    /// Every rank calls it last, in the same program with the same settings.
    ///
    /// The loaders are divided: rank r gets the r-th slice of each. Burn's loaders then shuffle within their slice;
    /// `bonfire::data::DatasetLoader` distributes the complete data set again every epoch. A loader that cannot be sliced is
    /// an error, [`LearnerError::NotSliced`](crate::LearnerError::NotSliced).
    ///
    /// From here on rank 0's input and output are the launcher's terminal, if that is one; see
    /// [`claim_terminal`]. Burn's experiment log is off where the process logs elsewhere, as a program of
    /// `bonfire::launch` does unless `BONFIRE_LOG` is `off`. What other ranks print appears when the display is gone,
    /// which is when `LearningResult::renderer` is dropped.
    ///
    /// # Errors
    /// An error that ends the training is `LearningResult::error` on every rank; on the others it names the rank at
    /// fault. Averaged gradients that are infinite or NaN are such an error, before they reach the optimizer.
    #[must_use]
    fn distributed(self, world: &World) -> Self {
        self.distributed_with(world, LearnerConfig::default())
    }

    /// Trains like [`distributed`](Self::distributed), and averages gradients as `config` says. A
    /// [`DdpConfig`](bonfire_train::DdpConfig) converts into it: bucket sizes, compression, precision. A step does not
    /// show its loss, which therefore cannot be scaled: [`Precision::F16`](bonfire_train::Precision::F16) is
    /// [`LearnerError::NotScaled`](crate::LearnerError::NotScaled). Burn's checkpoints lack the error feedback of
    /// [`GradientCompression::PowerSgd`](bonfire_train::GradientCompression::PowerSgd):
    /// [`CompressionCheckpoints`](crate::CompressionCheckpoints) save it, and a training that resumes without them warns.
    /// [`StepTimings`](crate::StepTimings) record the time of the steps.
    #[must_use]
    fn distributed_with(self, world: &World, config: impl Into<LearnerConfig>) -> Self;
}

impl<M: DistributedModel> DistributedTraining for SupervisedTraining<M> {
    fn distributed_with(self, world: &World, config: impl Into<LearnerConfig>) -> Self {
        let strategy = strategy(world, config.into());
        let training = self.with_training_strategy(strategy);
        if world.is_main() {
            if let Err(error) = claim_terminal() {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!("{error}{cause}; the learner shows lines instead of its display");
            }
            return if is_logged() { training.with_application_logger(None) } else { training };
        }
        let [model, optimizer, scheduler] = FromMain::all(world.group());
        training
            .renderer(Box::new(Silent))
            .with_application_logger(None)
            .with_metric_logger(InMemoryMetricLogger::default())
            .with_custom_checkpointers(model, optimizer, scheduler)
    }
}

/// Returns true if this process already has a log. A process has one log; Burn's experiment log would only report that
/// it cannot be it.
fn is_logged() -> bool {
    get_default(|log| !log.is::<NoSubscriber>())
}

struct Silent;

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, _state: MetricState) {}
    fn update_valid(&mut self, _state: MetricState) {}

    fn on_train_end(&mut self, _: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn on_test_end(&mut self, _: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl TrainingProgressLogger for Silent {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, _: Option<&str>) {}
    fn update_epoch(&mut self, _epoch: usize) {}
    fn start_split(&mut self, _split: &str, _total_items: usize) {}
    fn update_split(&mut self, _items_processed: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Silent {
    fn start_global_progress(&mut self, _total_tests: usize) {}
    fn start_test(&mut self, _name: &str, _total_items: usize) {}
    fn update_test_progress(&mut self, _items_processed: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
