//! Plans the memory of a training, before it runs.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use bonfire::collective::{Rank, WorldSize};
use bonfire::ddp::{Placement, Precision, Sharding};
use bonfire::parallel::schedule::Schedule;
use bonfire::parallel::{Axes, Pass, Pipeline};
use bonfire::plan::{
    Bytes, Evaluation, Resident, Training, outline, rehearse_among, rehearse_work,
};
use bonfire::world::{Axis, DeviceKind, Mesh};
use bonfire::{DdpConfig, SpawnOptions, World, spawn_with};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::passes;
use crate::data::Corpus;
use crate::model::Gpt;
use crate::options::Settings;
use crate::text::TextBatch;
use crate::train::pipeline::{owned, shape};
use crate::train::untrained;

/// Shows the memory of each rank of `pp` in each placement.
pub fn tables(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<String> {
    let trainings = plan(settings, corpus, ranks)?;
    let own = settings.config.placement;
    let mut placements = Placement::presets().to_vec();
    if !placements.contains(&own) {
        placements.push(own);
    }
    let grid = settings.config.mesh.over(ranks)?;
    let stages = trainings.len() > 1;
    // Stages run outside of the passes that gather parameters.
    placements.retain(|placement| !stages || placement.parameters != Sharding::Sharded);
    let placements = placements.into_iter().map(|placement| grid.placement(placement));
    let mut text = String::new();
    for (rank, training) in trainings.iter().enumerate() {
        if stages {
            writeln!(text, "rank {rank} of pp:")?;
        }
        write!(text, "{}", training.table(placements.clone(), settings.args.memory))?;
    }
    Ok(text)
}

/// Plans the memory of a training for each place on `pp`: the parameters of a rank, and the memory of its passes. The
/// ranks of `cp` and `tp` run them together, as threads of this process.
fn plan(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<Vec<Training>> {
    let grid = settings.config.mesh.over(ranks)?;
    let program = Bytes::new(Resident::of_this_process()?.now_bytes);
    let [dp_replicate, dp_shard, cp, tp] =
        [Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp].map(|axis| grid.size(axis));
    let together = SpawnOptions::new(WorldSize::new(cp * tp)?).with_device(DeviceKind::Cpu);
    let pp = WorldSize::new(grid.size(Axis::Pp))?;
    let measured = spawn_with(&together, |world| -> Result<_> {
        let mesh = world.mesh(&*format!("cp={cp},tp={tp}"))?;
        let device = Device::flex().autodiff();
        // Of any size are the windows of one rank.
        let (per_step, batch) = passes(&corpus.training, &settings.config, mesh.data(), &device)?;
        let micro_batches = (0..per_step).map(batch).collect();
        let rehearsal = Rehearsal { settings, corpus, micro_batches, device };
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
    micro_batches: Vec<TextBatch>,
    device: Device,
}

impl Rehearsal<'_> {
    fn layers(&self, world: &World, mesh: &Mesh) -> Result<Training> {
        let model = untrained(self.settings, self.corpus, &self.device);
        let model = model.divided(mesh.sub(Axis::Tp));
        let model = model.context("--mesh does not fit the model")?;
        let model = model.among(mesh.sub(Axis::Cp));
        let mut training = self.training(&model)?;
        training.micro_batches = self.micro_batches.len() as u64;
        training.activations = rehearse_among(world, &model, Precision::F32, |model| {
            model.loss(self.micro_batches[0].clone())
        })?;
        Ok(training)
    }

    /// Plans the ranks of `pp`, one after the other: each runs its list of passes without the others.
    fn stages(&self, world: &World, mesh: &Mesh, pp: WorldSize) -> Result<Vec<Training>> {
        ensure!(
            !self.settings.args.tries_schedules(),
            "--schedule auto is known once a training runs; name one for --plan"
        );
        let (lone, tp) = (mesh.sub(Axis::Pp), mesh.sub(Axis::Tp));
        let axes = Axes { stages: lone, data: lone };
        let shape = shape(&self.settings.config, pp, self.micro_batches.len())?;
        let schedule = Schedule::new(shape)?;
        let one = |rank: Rank| {
            let model = untrained(self.settings, self.corpus, &self.device);
            let weights = model.weights();
            let own = owned(&model.divided(tp)?, &weights, &schedule, rank)?;
            let mut training = self.training(&own)?;
            let passes = schedule.alone(rank);
            let mut pipeline = Pipeline::with_config(own, passes, axes, DdpConfig::default())?;
            let taken = rehearse_work(world, || {
                let forward = |stage: &Gpt, pass: &mut Pass<'_, _>| stage.alone(pass.micro_batch());
                let step = pipeline.backward(&self.micro_batches, forward);
                step.map(drop)
            })?;
            training.activations = taken.into();
            Ok(training)
        };
        pp.ranks().map(one).collect()
    }

    fn training<M: Module>(&self, own: &M) -> Result<Training> {
        let (kind, offload) = (&self.settings.config.optimizer.kind, &self.settings.config.offload);
        let moments = match serde_json::to_value(kind)?.as_str() {
            _ if *offload != Default::default() => 0,
            Some("sgd" | "lion") => 1,
            _ => 2,
        };
        let (parameters, start) = outline(own, |_| moments);
        let mut training = Training::new(parameters, WorldSize::ONE);
        training.start = start;
        Ok(training)
    }
}
