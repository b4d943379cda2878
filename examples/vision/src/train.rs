//! The training loop. Every rank runs it with the same configuration and the same data set.

use std::num::NonZeroUsize;

use anyhow::{Context, Result};
use bonfire::{
    Best, Checkpoints, Ddp, DistributedSampler, GlobalBatch, Keep, LastBatch, Loader, Loss,
    Milestone, Order, RateRule, Remainder, SamplerConfig, Training, World,
};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::ModuleOptimizer;

use crate::config::Config;
use crate::curves::Curves;
use crate::data::{Data, prefetch};
use crate::evaluate::evaluate;
use crate::meters::Meters;
use crate::model::{Model, trained_numbers};
use crate::optimizer::sgd;
use crate::progress::{Progress, agreed, resumed};
use crate::rate::rate;
use crate::tally::{Figures, Tally};
use crate::weights;

/// Checkpoints that are kept besides the best.
const KEPT: Keep = Keep {
    last: 2,
    best: Some(Best::Highest),
};

/// The best network's parameters, in [`Config::out_dir`].
pub const BEST_FILE: &str = "best.bpk";

/// What a training came to.
#[derive(Debug)]
pub struct Trained {
    /// The network after the last epoch, without autodiff: the same bits on every rank.
    pub model: Model,
    /// On the test pictures, after the last epoch.
    pub test: Figures,
    /// The highest top-1 accuracy of any epoch, in per cent.
    pub best: f64,
    /// The loss of every step that this run trained, the mean over the samples of all ranks.
    pub losses: Vec<f64>,
}

/// All that a step needs and changes.
struct Trainer<'a> {
    world: &'a World,
    config: &'a Config,
    data: &'a Data,
    ddp: Ddp<Model>,
    optimizer: ModuleOptimizer,
    loader: Loader,
    progress: Progress,
    curves: Curves,
    checkpoints: Checkpoints,
    /// Of every step, the mean over all ranks.
    losses: Vec<f64>,
}

/// Trains a network on all ranks of `world`, or goes on with it.
///
/// # Errors
/// If the data, the checkpoint or the folder cannot be used, if a loss is not finite on any rank, or
/// if a rank fails.
pub fn train(world: &World, config: &Config, data: &Data) -> Result<Trained> {
    let mut trainer = Trainer::new(world, config, data)?;
    let epochs = config.optim.max_epoch.get() as u64;
    let first = trainer.loader.epoch();
    let mut test = None;
    for epoch in first..epochs {
        trainer.train_epoch(epoch as usize)?;
        test = Some(trainer.finish_epoch(epoch as usize)?);
    }
    let model = trainer.ddp.module().valid();
    let test = match test {
        Some(test) => test,
        None => {
            note(world, &format!("all {epochs} epochs are trained already"));
            evaluate(world, &model, data, config)?
        }
    };
    Ok(Trained {
        model,
        test,
        best: trainer.progress.best.unwrap_or(test.top1),
        losses: trainer.losses,
    })
}

impl<'a> Trainer<'a> {
    fn new(world: &'a World, config: &'a Config, data: &'a Data) -> Result<Self> {
        let fresh_seed = agreed(world, config.rng_seed)?;
        let sampler = |seed| {
            DistributedSampler::new(SamplerConfig {
                len: data.training.count(),
                rank: world.rank(),
                world_size: world.world_size(),
                order: Order::Shuffled { seed },
                remainder: Remainder::Pad,
            })
        };
        let mut model = config
            .network()
            .init(fresh_seed, &world.device().autodiff());
        if let Some(path) = &config.model.weights {
            model = weights::load(model, path, world)?;
        }
        let folder = config.out_dir.join("checkpoints");
        let checkpoints = Checkpoints::open(world, folder, KEPT)?;
        let fresh = Training {
            model,
            optimizer: sgd(&config.optim),
            state: Progress {
                seed: fresh_seed,
                data: sampler(fresh_seed).state(0, 0),
                best: None,
            },
        };
        let Training {
            model,
            optimizer,
            state: progress,
        } = resumed(world, config, &checkpoints, fresh)?;
        // A seed that the configuration has must be the one that the data was dealt by.
        let seed = config.rng_seed.unwrap_or(progress.seed);
        let loader = Loader::new(sampler(seed), config.train.batch_size, LastBatch::Keep)
            .resuming(&progress.data)?;
        let model = norms(model, config, world)?;
        let parameters = trained_numbers(&model);
        let steps_done = loader.epoch() * loader.batches_per_epoch() as u64;
        let ddp = Ddp::new(model, world)?;
        if world.is_main() {
            config.save()?;
        }
        let trainer = Self {
            world,
            config,
            data,
            ddp,
            optimizer,
            loader,
            progress,
            curves: Curves::open(world, &config.out_dir, steps_done + 1)?,
            checkpoints,
            losses: Vec::new(),
        };
        trainer.announce(parameters);
        Ok(trainer)
    }

    /// The decisions of a run, once.
    fn announce(&self, parameters: usize) {
        let Self {
            world,
            config,
            data,
            ..
        } = self;
        let batch = GlobalBatch {
            world_size: world.world_size(),
            batch_size: config.train.batch_size,
            accumulation: NonZeroUsize::MIN,
        };
        let head = RateRule::None.headline(batch, data.training.count(), config.optim.base_lr);
        note(world, &head);
        note(
            world,
            &format!(
                "{} with {parameters} parameters on {}; {} training and {} test pictures of {} \
                 classes; {}; seed {}",
                config.model.arch,
                world.device_name(),
                data.training.count(),
                data.test.count(),
                data.training.classes().len(),
                match config.model.syncbn {
                    true => "batch normalisation over all ranks",
                    false => "batch normalisation on each rank",
                },
                self.progress.seed,
            ),
        );
        if self.loader.epoch() > 0 {
            note(
                world,
                &format!("resumed after epoch {}", self.loader.epoch()),
            );
        }
    }

    fn train_epoch(&mut self, epoch: usize) -> Result<()> {
        let (world, config) = (self.world, self.config);
        let (k, print_freq) = (config.train.topk.get(), config.train.print_freq.get());
        let rate = rate(&config.optim, epoch);
        let batches = self
            .data
            .training_batches(config, self.progress.seed, world);
        let prepare = move |indices: &[usize]| batches.batch(epoch as u64, indices);
        let dealt = self.loader.next_epoch();
        let steps = dealt.len();
        let steps_after = steps * (config.optim.max_epoch.get() - epoch - 1);
        let mut meters = Meters::new(format!("TRAIN [{}]", epoch + 1), steps, k);
        let cross_entropy = CrossEntropyLossConfig::new().init(&world.device().autodiff());

        let mut tally = Tally::default();
        for (step, prepared) in dealt.prefetch(prefetch(config), prepare)?.enumerate() {
            let batch = prepared?.batch;
            meters.data_ready();
            let (samples, labels) = (batch.labels.dims()[0], batch.labels.clone());
            // ANCHOR: step
            let mut scores = None;
            let gradients = self.ddp.backward(|model| {
                let output = model.forward(batch.pictures);
                scores = Some(output.clone().detach());
                Loss::mean_over(cross_entropy.forward(output, batch.labels), samples)
            })?;
            // All ranks stop here if a loss is not finite on one.
            let loss = self.ddp.global_loss()?;
            self.losses.push(loss);
            self.ddp.step(&mut self.optimizer, rate, gradients);
            // ANCHOR_END: step
            let scores = scores.context("the forward pass scores its batch")?;
            let own = self.ddp.last_loss().context("there was a forward pass")?;
            tally.add(scores, labels, own.into_scalar::<f64>(), k);
            meters.step();
            if meters.is_due(print_freq) {
                let so_far = tally.over_ranks(world.group())?;
                let so_far = so_far.context("the batch had samples")?;
                note(world, &meters.line(loss, so_far, steps_after));
                let done = (epoch * steps + step + 1) as u64;
                self.curves.training(done, loss, rate)?;
            }
        }
        Ok(())
    }

    /// Evaluates, and saves what there is now.
    fn finish_epoch(&mut self, epoch: usize) -> Result<Figures> {
        let (world, config) = (self.world, self.config);
        let model = self.ddp.module().valid();
        let test = evaluate(world, &model, self.data, config)?;
        let steps = (self.loader.batches_per_epoch() * (epoch + 1)) as u64;
        let is_best = self.progress.best.is_none_or(|best| test.top1 > best);
        if is_best {
            self.progress.best = Some(test.top1);
        }
        self.progress.next_epoch(epoch + 1);
        self.curves.test(steps, test)?;
        let milestone = Milestone {
            step: steps,
            metric: Some(test.top1),
        };
        let (module, progress) = (self.ddp.module(), &self.progress);
        self.checkpoints
            .save(milestone, module, &self.optimizer, progress)?;
        if is_best && world.is_main() {
            weights::save(&model, &config.out_dir.join(BEST_FILE))?;
        }
        note(
            world,
            &format!(
                "epoch {} | loss {:.4} | Acc@1 {:.3} | Acc@{} {:.3} | best Acc@1 {:.3}",
                epoch + 1,
                test.loss,
                test.top1,
                config.train.topk,
                test.topk,
                self.progress.best.unwrap_or(test.top1),
            ),
        );
        Ok(test)
    }
}

/// The normalisation that the configuration asks for.
fn norms(model: Model, config: &Config, world: &World) -> Result<Model> {
    Ok(match config.model.syncbn {
        true => bonfire::convert_sync_batch_norm(model, world)?,
        false => model,
    })
}

/// A line on rank 0.
fn note(world: &World, line: &str) {
    if world.is_main() {
        println!("{line}");
    }
}
