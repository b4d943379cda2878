//! Settings that forbid each other, in any job or on the ranks of one.
//!
//! It never asks for a model or a device: `bonfire::trainer::prepare` refuses what depends on these.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::path::PathBuf;

use bonfire_plan::pipeline::{Kind, Schedule, Shape};
use bonfire_plan::{Axis, Grid, ShardGroup, ShardUnit, Sharding, WorldSize};

use super::{Config, DilocoSection, OptimizerKind};
use crate::batch::Batches;
use crate::error::{ConfigError, ConfigErrors};
use crate::settings::{OffloadTo, Precision, Route, Wire};

impl Config {
    /// Lays the mesh out over the ranks of a job, and [checks](Self::check) the settings there.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] for a mesh of another number of ranks, and as [`check`](Self::check).
    pub fn grid(&self, ranks: WorldSize) -> Result<Grid, ConfigErrors> {
        let wrong = |cause| ConfigErrors(vec![self.refused("mesh", cause)]);
        let grid = self.mesh.over(ranks).map_err(wrong)?;
        self.check(Some(&grid)).map(|()| grid)
    }

    /// Checks that no setting forbids another one: in any job, and on the ranks of a mesh.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] for each setting that another one forbids.
    pub fn check(&self, grid: Option<&Grid>) -> Result<(), ConfigErrors> {
        let size = |axis| grid.map_or(1, |grid| grid.size(axis));
        let [pp, copies, shards, cp, tp] =
            [Axis::Pp, Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp].map(size);
        let (is_sharded, among) = (self.placement.is_sharded(), self.placement.among);
        let is_cut = self.placement.parameters == Sharding::Sharded;
        let is_compressed = self.gradients.wire != Wire::Own;
        let compute = self.precision.compute;
        let skips = compute == Precision::F16 || self.precision.skip_overflow;
        let (kind, momentum) = (self.optimizer.kind, self.optimizer.momentum.unwrap_or(0.0));
        let (optimizers, parameters) = (&self.offload.optimizer, &self.offload.parameters);
        let [keeps, is_offloaded] = [optimizers, parameters].map(|to| *to != OffloadTo::None);
        let are_files = [optimizers, parameters].iter().all(|to| matches!(to, OffloadTo::Files(_)));
        let no_folder = |to: &OffloadTo| *to == OffloadTo::Files(PathBuf::new());
        let saves_nowhere = self.checkpoints.folder == Some(PathBuf::new());
        let has_rows = is_sharded && self.placement.unit == ShardUnit::Rows;
        let leads = kind == OptimizerKind::Sgd && self.optimizer.nesterov && momentum == 0.0;
        let steps_whole = !kind.is_fused();
        let (key, saves) = ("diloco.local_steps", self.checkpoints.folder.is_some());
        let works = self.diloco.local_steps.is_some();
        let lacks = !works && self.diloco != DilocoSection::default();
        let other =
            if self.diloco.fragments == 1 { "diloco.outer_gradients" } else { "diloco.fragments" };
        let peers = if works { shards } else { copies * shards * cp };
        let direct = peers > 1 && matches!(self.gradients.route, Route::Device | Route::Nccl);
        let is_odd = matches!(among, ShardGroup::Ranks(n) if peers > n.get() && peers % n > 0);
        let refusals = [
            (pp > 1 && cp > 1, "mesh", "stages have whole sequences; leave pp or cp out"),
            (pp > 1 && is_cut, "placement", "stages have whole parameters; take zero1 or zero2"),
            (pp > 1 && compute != Precision::F32, "precision.compute", "in pp, cast in the stages"),
            (pp > 1 && is_offloaded, "offload.parameters", "with pp, use offload.optimizer"),
            (leads, "optimizer.nesterov", "set optimizer.momentum above 0"),
            (steps_whole && has_rows, "placement", "for lamb and muon take zero1-whole"),
            (steps_whole && tp > 1, "mesh", "lamb and muon step whole parameters; leave tp out"),
            (steps_whole && keeps, "offload.optimizer", "take adamw, adam, sgd or lion"),
            (steps_whole && is_offloaded, "offload.parameters", "take adamw, adam, sgd or lion"),
            (are_files && optimizers != parameters, "offload.parameters", "choose one folder"),
            (no_folder(optimizers), "offload.optimizer", "name a folder, or take none or memory"),
            (no_folder(parameters), "offload.parameters", "name a folder, or take none or memory"),
            (saves_nowhere, "checkpoints.folder", "name a folder, or leave it out"),
            (is_odd, "placement", "its groups have different numbers of ranks"),
            (is_sharded && is_compressed, "gradients.wire", "gradients of rows are not compressed"),
            (direct && (is_sharded || is_compressed), "gradients.route", "take auto or host"),
            (lacks, other, "set diloco.local_steps, or leave it out"),
            (works && pp * cp > 1, key, "workers have whole models; leave pp and cp out"),
            (works && copies == 1 && shards > 1, key, "for workers set mesh=dp_replicate=-1"),
            (works && is_cut, key, "it sends whole parameters; choose placement zero1 or zero2"),
            (works && is_offloaded, key, "workers keep parameters; use offload.optimizer"),
            (works && skips, key, "a worker that skips falls behind; no f16, no skip_overflow"),
            (works && saves, key, "the outer optimizer is not saved; leave checkpoints.folder out"),
        ];
        let refusals = refusals.into_iter().filter(|(is_so, ..)| *is_so);
        let errors: Vec<_> = refusals.map(|(_, key, reason)| self.refused(key, reason)).collect();
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }

    /// Returns the schedule of the ranks of `pp`, whose micro-batches are the forward passes of a step.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] for a schedule that does not have these.
    pub fn stages(&self, pp: WorldSize, batches: &Batches) -> Result<Schedule, ConfigErrors> {
        let usual = match self.pipeline.schedule {
            Kind::Interleaved | Kind::ZeroBubbleV => 2,
            Kind::GPipe | Kind::OneForwardOneBackward | Kind::ZeroBubbleH1 => 1,
        };
        let count = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let shape = Shape {
            kind: self.pipeline.schedule,
            ranks: pp,
            chunks: count(self.pipeline.stages_per_rank.unwrap_or(usual)),
            micro_batches: count(u32::try_from(batches.accumulation).unwrap_or(u32::MAX)),
        };
        Schedule::new(shape).map_err(|cause| {
            let (chunks, passes) = (shape.chunks, shape.micro_batches);
            let reason = format!("{chunks} on each rank, {passes} micro-batches: {cause}");
            ConfigErrors(vec![self.refused("pipeline.schedule", reason)])
        })
    }

    fn refused(&self, path: &str, reason: impl Display) -> ConfigError {
        let found = self.resolved().into_iter().find(|value| value.path == path);
        ConfigError::Refused {
            path: path.to_owned(),
            found: found.map_or_else(String::new, |found| found.value.replace('"', "")),
            reason: reason.to_string(),
        }
    }
}
