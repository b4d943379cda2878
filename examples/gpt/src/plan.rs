//! What memory a training takes, before it runs.

use anyhow::{Result, ensure};
use bonfire::collective::Rank;
use bonfire::ddp::Precision;
use bonfire::plan::{Evaluation, Resident, Training, WorldSize, outline, rehearse};
use bonfire::world::Axis;
use burn::tensor::Device;

use crate::batch::Sampler;
use crate::data::Corpus;
use crate::options::{OptimizerKind, Settings};
use crate::train::untrained;

/// The training as a planner of memory sees it: its parameters, and what a pass over the batch of one rank takes.
pub fn plan(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<Training> {
    let grid = settings.mesh.over(ranks)?;
    let divided = [Axis::Pp, Axis::Cp, Axis::Tp];
    ensure!(
        divided.iter().all(|axis| grid.size(*axis) == 1),
        "--plan is for ranks that have the whole model, and --mesh is {grid}; plan with dp alone"
    );
    let program = Resident::of_this_process()?.now;
    let device = Device::flex().autodiff();
    let model = untrained(settings, corpus, &device);
    let moments = match settings.optimizer.kind {
        _ if settings.offload_folder.is_some() => 0,
        OptimizerKind::Adamw | OptimizerKind::BurnAdamw | OptimizerKind::Muon => 2,
        OptimizerKind::Sgd | OptimizerKind::Lion => 1,
    };
    let (parameters, start) = outline(&model, |_| moments);
    let mut training = Training::new(parameters, ranks);
    let windows = Sampler {
        seed: settings.seed,
        windows: corpus.training.len(),
        batch: settings.batch,
    };
    let windows = windows.windows(0, Rank::new(0), ranks);
    training.start = start;
    training.program = program;
    training.evaluation = Evaluation::Whole;
    training.activations = rehearse(&model, Precision::F32, |model| {
        let batch = corpus.training.batch(&windows, &device);
        model.loss(batch.tokens, batch.targets)
    })?;
    Ok(training)
}
