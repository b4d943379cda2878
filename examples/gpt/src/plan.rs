//! Plans the memory of a training, before it runs.

use anyhow::{Context, Result, bail};
use bonfire::collective::{Rank, WorldSize};
use bonfire::ddp::Precision;
use bonfire::parallel::{Axes, Pass, Pipeline};
use bonfire::plan::{
    Bytes, Evaluation, Resident, Training, outline, rehearse_among, rehearse_work,
};
use bonfire::world::{Axis, DeviceKind, Mesh};
use bonfire::{DdpConfig, SpawnOptions, World, spawn_with};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::Sampler;
use crate::data::Corpus;
use crate::model::Part;
use crate::options::{OffloadKind, OptimizerKind, Order, Settings};
use crate::text::TextBatch;
use crate::train::pipeline::{owned, schedule, shape, stages};
use crate::train::untrained;

/// Plans the memory of a training for each place on `pp`: the parameters of a rank, and the memory of its passes. The
/// ranks of `cp` and `tp` run them together, as threads of this process.
pub fn plan(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<Vec<Training>> {
    let grid = settings.mesh.over(ranks)?;
    let program = Bytes::new(Resident::of_this_process()?.now_bytes);
    let [dp_replicate, dp_shard, cp, tp] =
        [Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp].map(|axis| grid.size(axis));
    let together = SpawnOptions::new(WorldSize::new(cp * tp)?).with_device(DeviceKind::Cpu);
    let windows =
        Sampler { seed: settings.seed, windows: corpus.training.len(), batch: settings.batch };
    let rehearsal = Rehearsal {
        settings,
        corpus,
        windows: windows.windows(0, Rank::new(0), WorldSize::new(dp_replicate * dp_shard)?),
        device: Device::flex().autodiff(),
    };
    let pp = WorldSize::new(grid.size(Axis::Pp))?;
    let measured = spawn_with(&together, |world| -> Result<_> {
        let mesh = world.mesh(&*format!("cp={cp},tp={tp}"))?;
        match pp {
            WorldSize::ONE => Ok(vec![rehearsal.layers(&world, &mesh)?]),
            _ => rehearsal.stages(&world, &mesh, pp),
        }
    })?;
    // The first one has one row of the vocabulary more, if any has.
    let first = measured.into_iter().next();
    let mut trainings = first.context("there is a rank")?;
    for training in &mut trainings {
        training.ranks = WorldSize::new(dp_replicate * dp_shard * cp)?;
        training.ranks_per_host = training.ranks;
        training.program = program;
        training.evaluation = Evaluation::Whole;
    }
    Ok(trainings)
}

struct Rehearsal<'a> {
    settings: &'a Settings,
    corpus: &'a Corpus,
    windows: Vec<usize>,
    device: Device,
}

impl Rehearsal<'_> {
    fn layers(&self, world: &World, mesh: &Mesh) -> Result<Training> {
        let model = untrained(self.settings, self.corpus, &self.device);
        let model = model.divided(mesh.sub(Axis::Tp));
        let model = model.context("--mesh does not fit the model")?;
        let model = model.among(mesh.sub(Axis::Cp));
        let mut training = self.training(&model);
        training.activations = rehearse_among(world, &model, Precision::F32, |model| {
            let batch = self.corpus.training.batch(&self.windows, &self.device);
            model.loss(batch.tokens, batch.targets)
        })?;
        Ok(training)
    }

    /// Plans the ranks of `pp`, one after the other: each runs its list of passes without the others.
    fn stages(&self, world: &World, mesh: &Mesh, pp: WorldSize) -> Result<Vec<Training>> {
        let settings = self.settings;
        let Order::Named(kind) = settings.pipeline.order else {
            bail!("--schedule auto is known once a training runs; name one for --plan");
        };
        let (lone, tp) = (mesh.sub(Axis::Pp), mesh.sub(Axis::Tp));
        let axes = Axes { stages: lone, data: lone };
        let shape = shape(pp, settings, kind)?;
        let schedule = schedule(shape)?;
        let windows = self.windows.chunks(settings.micro_batch());
        let batch = |windows| self.corpus.training.batch(windows, &self.device);
        let micro_batches: Vec<TextBatch> = windows.map(batch).collect();
        let one = |rank| {
            let model = untrained(settings, self.corpus, &self.device);
            let weights = model.weights();
            let own = owned(stages(model, &weights, shape, tp)?, &schedule, rank);
            let mut training = self.training(&own);
            // ANCHOR: stages
            let passes = schedule.alone(rank);
            let mut pipeline = Pipeline::with_config(own, passes, axes, DdpConfig::default())?;
            let taken = rehearse_work(world, || {
                let forward = |part: &Part, pass: &mut Pass<'_, _>| part.alone(pass.micro_batch());
                let step = pipeline.backward(&micro_batches, forward);
                step.map(drop)
            })?;
            training.activations = taken.into();
            // ANCHOR_END: stages
            Ok(training)
        };
        pp.ranks().map(one).collect()
    }

    fn training<M: Module>(&self, own: &M) -> Training {
        let moments = match self.settings.optimizer.kind {
            _ if self.settings.offload != OffloadKind::None => 0,
            OptimizerKind::Adamw | OptimizerKind::BurnAdamw | OptimizerKind::Muon => 2,
            OptimizerKind::Sgd | OptimizerKind::Lion => 1,
        };
        let (parameters, start) = outline(own, |_| moments);
        let mut training = Training::new(parameters, WorldSize::ONE);
        training.start = start;
        training
    }
}
