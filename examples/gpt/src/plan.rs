//! What memory a training takes, before it runs.

use anyhow::{Context, Result, ensure};
use bonfire::collective::Rank;
use bonfire::ddp::Precision;
use bonfire::plan::{Evaluation, Resident, Training, WorldSize, outline, rehearse_among};
use bonfire::world::{Axis, DeviceKind};
use bonfire::{SpawnOptions, spawn_with};
use burn::tensor::Device;

use crate::batch::Sampler;
use crate::data::Corpus;
use crate::options::{OptimizerKind, Settings};
use crate::train::untrained;

/// The training as a planner of memory sees it: the parameters of a rank, and what a pass over its batch takes. The ranks of
/// `cp` and `tp` run it together, as threads of this process.
pub fn plan(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<Training> {
    let grid = settings.mesh.over(ranks)?;
    ensure!(
        grid.size(Axis::Pp) == 1,
        "--plan is for ranks that have all layers, and --mesh is {grid}; plan without pp"
    );
    let program = Resident::of_this_process()?.now;
    let device = Device::flex().autodiff();
    let moments = match settings.optimizer.kind {
        _ if settings.offload_folder.is_some() => 0,
        OptimizerKind::Adamw | OptimizerKind::BurnAdamw | OptimizerKind::Muon => 2,
        OptimizerKind::Sgd | OptimizerKind::Lion => 1,
    };
    let [dp_replicate, dp_shard, cp, tp] =
        [Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp].map(|axis| grid.size(axis));
    let windows = Sampler {
        seed: settings.seed,
        windows: corpus.training.len(),
        batch: settings.batch,
    };
    let windows = windows.windows(0, Rank::new(0), WorldSize::new(dp_replicate * dp_shard)?);
    let together = SpawnOptions::new(WorldSize::new(cp * tp)?).with_device(DeviceKind::Cpu);
    let measured = spawn_with(&together, |world| -> Result<_> {
        let mesh = world.mesh(format!("cp={cp},tp={tp}").parse()?)?;
        let model = untrained(settings, corpus, &device);
        let model = model.divided(mesh.sub(Axis::Tp));
        let model = model.context("--mesh does not fit the model")?;
        let model = model.among(mesh.sub(Axis::Cp));
        let outline = outline(&model, |_| moments);
        let activations = rehearse_among(&world, &model, Precision::F32, |model| {
            let batch = corpus.training.batch(&windows, &device);
            model.loss(batch.tokens, batch.targets)
        })?;
        Ok((outline, activations))
    })?;
    // The first one has one row of the vocabulary more, if any has.
    let first = measured.into_iter().next();
    let ((parameters, start), activations) = first.context("there is a rank")?;
    let mut training = Training::new(parameters, WorldSize::new(dp_replicate * dp_shard * cp)?);
    training.start = start;
    training.program = program;
    training.evaluation = Evaluation::Whole;
    training.activations = activations;
    Ok(training)
}
