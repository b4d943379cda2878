//! Plans the memory of a training, before it runs.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use bonfire::collective::{Rank, WorldSize};
use bonfire::ddp::{Placement, Precision, Sharding};
use bonfire::parallel::{Axes, Pass, Pipeline};
use bonfire::plan::{
    Bytes, Evaluation, Resident, Training, outline, rehearse_among, rehearse_work,
};
use bonfire::world::{Axis, DeviceKind, Grid};
use bonfire::{DdpConfig, SpawnOptions, spawn_with};
use burn::module::Module;
use burn::tensor::Device;

use crate::corpus::Corpus;
use crate::model::Gpt;
use crate::options::Settings;
use crate::train::Run;

/// Shows the memory of each rank of `pp` in each placement.
pub fn tables(settings: &Settings, corpus: &Corpus, ranks: WorldSize) -> Result<String> {
    let grid = settings.config.mesh.over(ranks)?;
    let trainings = plan(settings, corpus, &grid)?;
    let own = settings.config.placement;
    let mut placements = Placement::presets().to_vec();
    if !placements.contains(&own) {
        placements.push(own);
    }
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
fn plan(settings: &Settings, corpus: &Corpus, grid: &Grid) -> Result<Vec<Training>> {
    let program = Bytes::new(Resident::of_this_process()?.now_bytes);
    let [dp_replicate, dp_shard, cp, tp] =
        [Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp].map(|axis| grid.size(axis));
    let pp = WorldSize::new(grid.size(Axis::Pp))?;
    let together = SpawnOptions::new(WorldSize::new(cp * tp)?).with_device(DeviceKind::Cpu);
    let measured = spawn_with(&together, |world| -> Result<_> {
        let mesh = &world.mesh(&*format!("cp={cp},tp={tp}"))?;
        let device = Device::flex().autodiff();
        let run = Run { world: &world, mesh, settings, corpus, device };
        match pp {
            WorldSize::ONE => Ok(vec![run.rehearse_layers()?]),
            _ => run.rehearse_stages(pp),
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

/// Rehearsals are on a mesh of `cp` and `tp` alone: ranks along the other axes have batches of the same size.
impl Run<'_> {
    fn rehearse_layers(&self) -> Result<Training> {
        let micro_batches = self.micro_batches()?;
        let model = self.divided(self.model())?.among(self.mesh.sub(Axis::Cp));
        let mut training = self.training(&model)?;
        training.micro_batches = micro_batches.len() as u64;
        training.activations = rehearse_among(self.world, &model, Precision::F32, |model| {
            model.loss(micro_batches[0].clone())
        })?;
        Ok(training)
    }

    /// Plans the ranks of `pp`, one after the other: each runs its list of passes without the others.
    fn rehearse_stages(&self, pp: WorldSize) -> Result<Vec<Training>> {
        ensure!(
            !self.settings.args.tries_schedules(),
            "--schedule auto is known once a training runs; name one for --plan"
        );
        let micro_batches = self.micro_batches()?;
        let config = &self.settings.config;
        let batches = config.batches(self.mesh.data().world_size().get().into())?;
        let schedule = config.stages(pp, &batches)?;
        let weights = self.model().weights();
        let lone = self.mesh.sub(Axis::Pp);
        let axes = Axes { stages: lone, data: lone };
        let one = |rank: Rank| {
            let own = schedule.stages_on(rank).into_iter();
            let own: Vec<Gpt> = own.map(self.stages_of(&schedule, &weights)?).collect();
            let mut training = self.training(&own)?;
            let passes = schedule.alone(rank);
            let mut pipeline = Pipeline::with_config(own, passes, axes, DdpConfig::default())?;
            let taken = rehearse_work(self.world, || {
                let forward = |stage: &Gpt, pass: &mut Pass<'_, _>| stage.alone(pass.micro_batch());
                pipeline.backward(&micro_batches, forward).map(drop)
            })?;
            training.activations = taken.into();
            Ok(training)
        };
        pp.ranks().map(one).collect()
    }

    /// Plans the parameters of this rank.
    fn training<M: Module>(&self, own: &M) -> Result<Training> {
        let (optimizer, offload) = (&self.settings.config.optimizer, &self.settings.config.offload);
        let moments = if *offload == Default::default() {
            optimizer.kind.moments(optimizer.momentum)
        } else {
            0
        };
        let (parameters, start) = outline(own, |_| moments);
        let mut training = Training::new(parameters, WorldSize::ONE);
        training.start = start;
        Ok(training)
    }
}
