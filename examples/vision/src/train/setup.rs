//! Starts or resumes a training.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;

use anyhow::{Result, anyhow};
use bonfire::collective::Rank;
use bonfire::config::{Config as Settings, ConfigErrors};
use bonfire::data::PictureBatch;
use bonfire::optim::{GlobalBatch, RateRule};
use bonfire::report::JournalDisplay;
use bonfire::trainer::{self, Parts, Trainer, prepare};
use bonfire::{World, all_or_none};

use crate::config::Config;
use crate::data::Data;
use crate::model::Model;
use crate::networks::trained_numbers;
use crate::rate::rate;
use crate::weights;

/// Returns the configuration with a seed: its own, or that of an earlier run in the same folder, or one that rank 0
/// draws for all.
pub(super) fn seeded(world: &World, config: &Config) -> Result<Config> {
    let mut seed = [config.rng_seed.unwrap_or_default()];
    if config.rng_seed.is_none() {
        let earlier = Config::load(Some(&config.saved_path()), &[]);
        let earlier = earlier.ok().and_then(|earlier| earlier.rng_seed);
        // Few digits, so that one can give it to another run.
        seed = [earlier.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)];
        world.group().broadcast(&mut seed, Rank::new(0))?;
    }
    Ok(Config { rng_seed: Some(seed[0]), ..config.clone() })
}

/// Prepares the training, from the last checkpoint if there is one, and says what it is.
pub(super) fn prepared(
    world: &World,
    config: &Config,
    data: &Data,
) -> Result<Trainer<Model, PictureBatch>> {
    let seed = config.rng_seed.unwrap_or_default();
    let model = norms(begin(world, config, seed)?, config, world)?;
    let parameters = trained_numbers(&model);
    let batches = data.training_batches(config, seed, world);
    let batches = all_or_none(world, batches)?;
    let count = data.training.count();
    let batches =
        trainer::Data::try_by_epoch(count, move |epoch, indices| batches.batch(epoch, indices));
    let optim = config.optim.clone();
    let parts = Parts::new(model, batches)
        .with_epoch_schedule(move |epoch| rate(&optim, epoch as usize))
        .with_units("pictures", 1)
        .with_display(JournalDisplay::Notes);
    let trainer = prepare(world, &settings(config, data)?, parts)?;
    let path = config.out_dir.display();
    let refusal =
        || anyhow!("{path} has checkpoints, and TRAIN.AUTO_RESUME is off; give another OUT_DIR");
    let may_begin = config.train.auto_resume || trainer.steps() == 0;
    all_or_none(world, may_begin.then_some(()).ok_or_else(refusal))?;
    announce(world, config, data, &trainer, parameters);
    Ok(trainer)
}

fn announce(
    world: &World,
    config: &Config,
    data: &Data,
    trainer: &Trainer<Model, PictureBatch>,
    parameters: usize,
) {
    let batch = global_batch(world, config);
    let count = data.training.count();
    trainer.note(&RateRule::None.headline(batch, count, config.optim.base_lr));
    trainer.note(&format!(
        "{} with {parameters} parameters on {}; {count} training and {} test pictures of {} classes; \
         batch normalisation {}; seed {}",
        config.model.arch,
        world.device_name(),
        data.test.count(),
        data.training.classes().len(),
        if config.model.syncbn { "over all ranks" } else { "on each rank" },
        config.rng_seed.unwrap_or_default(),
    ));
    let (epochs, steps) = (trainer.epochs(), trainer.steps());
    if steps > 0 {
        trainer.note(&format!("resumed after epoch {epochs}, at step {steps}"));
    }
}

/// The settings of the trainer.
fn settings(config: &Config, data: &Data) -> Result<Settings, ConfigErrors> {
    let (train, optim) = (&config.train, &config.optim);
    let mut settings = Settings::default().with_words([
        "optimizer.kind=sgd",
        "checkpoints.keep=2",
        "checkpoints.best=highest",
    ])?;
    settings.seed = config.rng_seed.unwrap_or_default();
    settings.epochs = optim.max_epoch.get() as u64;
    settings.batch.micro = Some(train.batch_size.get() as u64);
    settings.data.workers = train.workers.get();
    settings.optimizer.lr = optim.base_lr;
    settings.optimizer.momentum = Some(optim.momentum);
    settings.optimizer.dampening = optim.dampening;
    // Without momentum it means nothing.
    settings.optimizer.nesterov = optim.nesterov && optim.momentum > 0.0;
    settings.optimizer.weight_decay = optim.weight_decay;
    settings.checkpoints.folder = Some(config.out_dir.join("checkpoints"));
    settings.checkpoints.resume_optimizer = train.load_opt;
    settings.report.title = format!("{} on {}", config.model.arch, data.training.name());
    settings.report.folder = Some(config.out_dir.clone());
    // The loop says when.
    settings.report.every = u64::MAX;
    Ok(settings)
}

fn begin(world: &World, config: &Config, seed: u64) -> Result<Model> {
    let model = config.network().init(seed, &world.device().autodiff());
    match &config.model.weights {
        Some(path) => Ok(all_or_none(world, weights::load(model, path, world))?),
        None => Ok(model),
    }
}

fn norms(model: Model, config: &Config, world: &World) -> Result<Model> {
    Ok(if config.model.syncbn {
        bonfire::nn::convert_sync_batch_norm(model, world)?
    } else {
        model
    })
}

/// The batches of each rank in a complete epoch, which pads.
pub(super) fn batches_per_epoch(world: &World, config: &Config, data: &Data) -> usize {
    data.training.count().div_ceil(global_batch(world, config).samples())
}

fn global_batch(world: &World, config: &Config) -> GlobalBatch {
    GlobalBatch {
        world_size: world.world_size(),
        batch_size: config.train.batch_size,
        accumulation: NonZeroUsize::MIN,
    }
}
