//! Starts or resumes a training.

use std::num::NonZeroUsize;

use crate::networks::trained_numbers;
use anyhow::Result;
use bonfire::checkpoint::Checkpoints;
use bonfire::data::Loader;
use bonfire::optim::{GlobalBatch, RateRule};
use bonfire::report::{Journal, JournalConfig, JournalDisplay};
use bonfire::world::StopRequest;
use bonfire::{Ddp, World, all_or_none};

use super::progress::{Progress, agreed, resumed};
use super::{KEPT, Trainer};
use crate::config::Config;
use crate::data::Data;
use crate::model::Model;
use crate::optimizer::sgd;
use crate::weights;

impl<'a> Trainer<'a> {
    pub(super) fn new(
        world: &'a World,
        config: &'a Config,
        data: &'a Data,
        stop: &'a StopRequest,
    ) -> Result<Self> {
        let seed = agreed(world, config.rng_seed)?;
        let model = norms(begin(world, config, seed)?, config, world)?;
        let parameters = trained_numbers(&model);
        let folder = config.out_dir.join("checkpoints");
        let checkpoints = all_or_none(world, Checkpoints::open(world, folder, KEPT))?;
        let mut ddp = Ddp::new(model, world)?;
        let mut optimizer = sgd(&config.optim);
        let resumed = resumed(world, config, &checkpoints, &mut ddp, &mut optimizer);
        let (progress, steps) = all_or_none(world, resumed)?.unwrap_or_else(|| {
            let progress =
                Progress { seed, data: loader(world, data, config, seed).state(), best: None };
            (progress, 0)
        });
        // A seed that the configuration has must be the one by which the data was distributed.
        let seed = config.rng_seed.unwrap_or(progress.seed);
        let loader = loader(world, data, config, seed).resuming(&progress.data);
        let loader = all_or_none(world, loader)?;
        let batches = loader.batches_per_epoch();
        let epochs = config.optim.max_epoch.get();
        let left = epochs.saturating_sub(loader.epoch() as usize);
        let title = format!("{} on {}", config.model.arch, data.training.name());
        let journal = JournalConfig::new(title, steps + (left * batches) as u64)
            .with_steps_done(steps)
            .with_samples_per_step(global_batch(world, config).samples(), "pictures")
            .with_display(JournalDisplay::Notes)
            .with_folder(&config.out_dir);
        let trainer = Self {
            world,
            config,
            data,
            stop,
            ddp,
            optimizer,
            loader,
            progress,
            journal: Journal::new(world, journal)?,
            checkpoints,
            steps,
            steps_saved: steps,
            losses: Vec::new(),
        };
        trainer.announce(parameters);
        Ok(trainer)
    }

    fn announce(&self, parameters: usize) {
        let Self { world, config, data, journal, .. } = self;
        let batch = global_batch(world, config);
        let head = RateRule::None.headline(batch, data.training.count(), config.optim.base_lr);
        journal.note(&head);
        journal.note(&format!(
            "{} with {parameters} parameters on {}; {} training and {} test pictures of {} classes; \
             {}; seed {}",
            config.model.arch,
            world.device_name(),
            data.training.count(),
            data.test.count(),
            data.training.classes().len(),
            if config.model.syncbn {
"batch normalisation over all ranks"
} else {
"batch normalisation on each rank"
},
            self.progress.seed,
        ));
        if self.steps > 0 {
            let (epoch, steps) = (self.loader.epoch(), self.steps);
            journal.note(&format!("resumed after epoch {epoch}, at step {steps}"));
        }
    }
}

fn begin(world: &World, config: &Config, seed: u64) -> Result<Model> {
    let model = config.network().init(seed, &world.device().autodiff());
    match &config.model.weights {
        Some(path) => Ok(all_or_none(world, weights::load(model, path, world))?),
        None => Ok(model),
    }
}

fn loader(world: &World, data: &Data, config: &Config, seed: u64) -> Loader {
    Loader::new(world, data.training.count(), config.train.batch_size.get()).with_shuffle(seed)
}

fn global_batch(world: &World, config: &Config) -> GlobalBatch {
    GlobalBatch {
        world_size: world.world_size(),
        batch_size: config.train.batch_size,
        accumulation: NonZeroUsize::MIN,
    }
}

fn norms(model: Model, config: &Config, world: &World) -> Result<Model> {
    Ok(if config.model.syncbn {
        bonfire::nn::convert_sync_batch_norm(model, world)?
    } else {
        model
    })
}
