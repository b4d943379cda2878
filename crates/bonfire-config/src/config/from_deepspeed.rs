//! Converts a DeepSpeed file to Bonfire's own configuration.

use super::{Config, KeptIn, MuonScale, OptimizerKind};
use crate::deepspeed::{DeepSpeedConfig, LossScale, Note, Optimizer, Rule};
use crate::error::ConfigErrors;
use crate::source::Source;

impl Config {
    /// Applies a DeepSpeed file.
    ///
    /// # Errors
    /// Numbers that no training can have.
    pub fn with_deepspeed(mut self, file: &DeepSpeedConfig) -> Result<Self, ConfigErrors> {
        self.notes.clone_from(&file.notes);
        self.batch.total = file.batch.train;
        self.batch.micro = file.batch.micro;
        self.batch.accumulation = file.batch.accumulation;
        self.data.drop_last = file.drop_last;
        if let Some(optimizer) = &file.optimizer {
            self.optimizer_of(optimizer);
        }
        self.deepspeed_schedule.clone_from(&file.schedule);
        if let Some(schedule) = &file.schedule {
            self.optimizer.lr = schedule.highest();
        }
        self.clip.norm = (file.gradient_clipping > 0.0).then_some(file.gradient_clipping);
        if self.clip.norm.is_some() && !is_said(file, "gradient_clipping") {
            self.note(
                "gradient_clipping",
                "the file says nothing, and DeepSpeed's default is 1.0; 0 clips nothing",
            );
        }
        self.precision.compute = file.precision;
        if let Some(scale) = file.loss_scale {
            self.loss_scale_of(scale);
        }
        self.precision.skip_overflow = file.skip_overflow;
        self.gradients.wire = file.communication;
        if is_said(file, "zero_optimization.reduce_bucket_size") {
            let elems = usize::try_from(file.zero.reduce_bucket_size).unwrap_or(usize::MAX);
            self.gradients.bucket_bytes = Some(elems.saturating_mul(4));
        }
        let placement = match file.zero.stage {
            0 => "replicated",
            1 => "zero1",
            2 => "zero2",
            _ => "zero3",
        };
        let whole = match (&self.optimizer.kind, file.zero.stage) {
            (OptimizerKind::Muon, 1 | 2) => "-whole",
            _ => "",
        };
        let among = match file.zero.shard_among {
            Some(ranks) if file.zero.stage > 0 => format!("@{ranks}"),
            _ => String::new(),
        };
        let name = format!("{placement}{whole}{among}");
        self.placement = name.parse().expect("every such name is a placement's");
        let (pp, tp) = (file.pipeline_stages.unwrap_or(1), file.tensor_parallel.max(1));
        if pp > 1 || tp > 1 {
            let mesh = format!("pp={pp},dp=-1,tp={tp}");
            self.mesh = mesh.parse().expect("every such text is a mesh's");
        }
        self.offload.optimizer.clone_from(&file.zero.offload_optimizer);
        self.offload.parameters.clone_from(&file.zero.offload_param);
        if let Some(steps) = file.steps_per_print {
            self.report.every = steps.max(1);
        }
        self.report.folder.clone_from(&file.tensorboard);
        if file.cpu_checkpointing {
            self.offload.activations = KeptIn::Memory;
            self.note(
                "activation_checkpointing.cpu_checkpointing",
                "it is for the blocks that the model runs by bonfire::trainer::recompute",
            );
        }
        super::layers::check(&self)?;
        Ok(self.sourced())
    }

    pub(super) fn note(&mut self, path: &str, text: &str) {
        self.notes.push(Note { path: path.to_owned(), text: text.to_owned() });
    }

    /// Marks each value that differs from the default as the file's.
    fn sourced(mut self) -> Self {
        let defaults = super::layers::leaves(&super::layers::tree(&Self::default()));
        let own = super::layers::leaves(&super::layers::tree(&self));
        for ((path, default), (_, value)) in defaults.into_iter().zip(own) {
            if value != default {
                self.sources.insert(path, Source::File);
            }
        }
        self
    }

    fn optimizer_of(&mut self, from: &Optimizer) {
        let to = &mut self.optimizer;
        (to.lr, to.weight_decay) = (from.lr, from.weight_decay);
        match from.rule {
            Rule::Adam { betas, eps, decoupled } => {
                to.kind = if decoupled { OptimizerKind::AdamW } else { OptimizerKind::Adam };
                (to.betas, to.eps) = (Some(betas), eps);
            }
            Rule::Sgd { momentum, dampening, nesterov } => {
                to.kind = OptimizerKind::Sgd;
                (to.momentum, to.dampening, to.nesterov) = (Some(momentum), dampening, nesterov);
            }
            Rule::Lion { betas } => {
                to.kind = OptimizerKind::Lion;
                to.betas = Some(betas);
            }
            Rule::Muon { momentum, betas, eps } => {
                (to.kind, to.muon_scale) = (OptimizerKind::Muon, MuonScale::Original);
                (to.momentum, to.betas, to.eps) = (Some(momentum), Some(betas), eps);
            }
        }
    }

    fn loss_scale_of(&mut self, from: LossScale) {
        let to = &mut self.precision;
        match from {
            LossScale::Fixed(scale) => to.loss_scale = Some(scale),
            LossScale::Dynamic { initial, window, hysteresis, consecutive_hysteresis, min } => {
                let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                (to.initial_scale, to.min_scale) = (initial, min);
                (to.scale_window, to.hysteresis) = (count(window), count(hysteresis));
                to.consecutive_hysteresis = consecutive_hysteresis;
            }
        }
    }
}

fn is_said(file: &DeepSpeedConfig, path: &str) -> bool {
    let mut values = file.resolved.iter();
    values.any(|value| value.path == path && value.source != Source::Default)
}
