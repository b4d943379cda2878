//! A learner that draws and writes on rank 0 only.

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
use crate::records::{FromMain, Restoring};
use crate::strategy::strategy_of;
use bonfire_train::World;

/// Lets `burn::train::SupervisedTraining` train on several ranks.
pub trait DistributedTraining: Sized {
    /// Trains on the ranks of `world` with [`strategy`](crate::strategy). Rank 0 draws, logs and writes checkpoints as
    /// it would alone; all others are silent, whatever was set before, and need no file: with `.checkpoint(epoch)`
    /// rank 0 reads for all. Call it last, on every rank.
    ///
    /// From here on rank 0's input and output are the launcher's terminal, if that is one; see
    /// [`claim_terminal`]. Burn's experiment log is off where the process logs elsewhere, as a program of
    /// `bonfire::launch` does unless `BONFIRE_LOG` is `off`. What other ranks print appears when the display is gone,
    /// which is when `LearningResult::renderer` is dropped.
    #[must_use]
    fn distributed(self, world: &World) -> Self {
        self.distributed_with(world, LearnerConfig::default())
    }

    /// Trains like [`distributed`](Self::distributed), and averages gradients as `config` says; a
    /// [`DdpConfig`](bonfire_train::DdpConfig) converts into it. See [`strategy_with`](crate::strategy_with).
    #[must_use]
    fn distributed_with(self, world: &World, config: impl Into<LearnerConfig>) -> Self;
}

impl<M: DistributedModel> DistributedTraining for SupervisedTraining<M> {
    fn distributed_with(self, world: &World, config: impl Into<LearnerConfig>) -> Self {
        let strategy = strategy_of(world, config.into(), Restoring::MainRank);
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
