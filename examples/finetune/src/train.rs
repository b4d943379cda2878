//! The epochs. Every rank runs them with the same options and the same folder.
//!
//! Nothing is written before the first epoch is done, or the training is stopped. An error of one rank, or of all, is
//! reported by one rank: see `bonfire::all_or_none`.

use std::fs;

use anyhow::{Context, Result, ensure};
use bonfire::checkpoint::{Best, Checkpoints, Keep, Milestone};
use bonfire::data::{PictureBatch, Prefetch, Prefetched, SamplerState};
use bonfire::ddp::Loss;
use bonfire::report::{BatchProgress, EventWriter, WeightedMean};
use bonfire::weights::{Export, save_weights};
use bonfire::world::StopRequest;
use bonfire::{Ddp, NextStep, World, agree_on_next_step, all_or_none};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use vision::networks::resnet::ResNet;

use crate::data::{Data, Share};
use crate::model::start;
use crate::options::Options;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Epoch {
    loss: f64,
    accuracy: f64,
    learning_rate: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Trained,
    /// The ranks were asked to stop, and have saved their state.
    Stopped,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Progress {
    /// The position in the data; after an epoch that is not validated yet, its end.
    data: SamplerState,
    /// The loss of that epoch's steps so far, over all ranks.
    loss: WeightedMean,
}

struct Trainer<'a> {
    world: &'a World,
    options: &'a Options,
    stop: &'a StopRequest,
    ddp: Ddp<ResNet>,
    optimizer: ModuleOptimizer,
    training: Share,
    validation: Share,
    checkpoints: Checkpoints,
    progress: Progress,
    /// Steps done, those of earlier runs included, and at the newest checkpoint.
    steps: u64,
    steps_saved: u64,
}

/// Trains on all ranks of `world`, from the beginning or from an interrupted training in the same folder, to the end
/// or until `stop` is requested.
pub fn train(world: &World, options: &Options, data: &Data, stop: &StopRequest) -> Result<End> {
    let mut trainer = all_or_none(world, Trainer::new(world, options, data, stop))?;
    let first = trainer.progress.data.epoch;
    let schedule = options.schedule(world.world_size());
    let epochs = options.epochs.get() as u64;
    if world.is_main() {
        let (to_learn, to_judge) = data.counts();
        let batch = options.global_batch(world.world_size());
        let headline = options.rate_rule().headline(batch, to_learn, options.lr);
        println!("{to_learn} pictures to learn from, {to_judge} held out; {headline}");
        if first < epochs {
            println!("curves: tensorboard --logdir {}", options.out.display())
        } else {
            println!("{first} epochs are trained already; give more --epochs, or another --out")
        }
    }
    let mut curves = None;
    for epoch in first..epochs {
        let Some(outcome) = trainer.epoch(schedule.rate(epoch))? else {
            trainer.save_where_it_is()?;
            return Ok(End::Stopped);
        };
        let reported =
            if world.is_main() { report(epoch, outcome, &mut curves, options) } else { Ok(()) };
        all_or_none(world, reported)?;
        trainer.write_weights(epoch)?;
        trainer.progress.next_epoch(epoch + 1);
        trainer.save(Some(outcome.accuracy))?;
    }
    Ok(End::Trained)
}

impl Progress {
    fn next_epoch(&mut self, epoch: u64) {
        (self.data.epoch, self.data.offset) = (epoch, 0);
        self.loss = WeightedMean::new();
    }
}

impl<'a> Trainer<'a> {
    fn new(
        world: &'a World,
        options: &'a Options,
        data: &Data,
        stop: &'a StopRequest,
    ) -> Result<Self> {
        let mut training = data.training(options, world)?;
        ensure!(
            training.loader.batches_per_epoch() > 0,
            "{} pictures to learn from are fewer than one step of {} takes; choose a smaller \
             --batch-size or fewer ranks",
            data.counts().0,
            options.global_batch(world.world_size()).samples()
        );
        let keep = Keep::last(1).and_best(Best::Highest);
        let checkpoints = Checkpoints::open(world, options.out.join("checkpoints"), keep)?;
        let model = start(options, world)?;
        let model = if options.sync_bn {
            bonfire::nn::convert_sync_batch_norm(model, world)?
        } else {
            model
        };
        let mut ddp = Ddp::new(model, world)?;
        let mut optimizer = optimizer();
        let resumed = checkpoints.resume(&mut ddp, &mut optimizer)?;
        let (steps, progress) = match resumed {
            Some(resumed) => (resumed.milestone.step, resumed.state),
            None => {
                let data = training.start.clone();
                let loss = WeightedMean::new();
                (0, Progress { data, loss })
            }
        };
        training.loader = training.loader.resuming(&progress.data)?;
        Ok(Self {
            world,
            options,
            stop,
            ddp,
            optimizer,
            training,
            validation: data.validation(options, world)?,
            checkpoints,
            progress,
            steps,
            steps_saved: steps,
        })
    }

    /// Runs the rest of the epoch; `None` if the ranks stop on the way.
    fn epoch(&mut self, learning_rate: f64) -> Result<Option<Epoch>> {
        // A training may have stopped between the last step of an epoch and its end.
        let is_learnt = self.progress.data.epoch < self.training.loader.epoch();
        if !is_learnt && !self.learn(learning_rate)? {
            return Ok(None);
        }
        // Of losses that are over all ranks already.
        let loss = self.progress.loss.local().unwrap_or(f64::NAN);
        let accuracy = self.accuracy()?;
        Ok(accuracy.map(|accuracy| Epoch { loss, accuracy, learning_rate }))
    }

    /// Trains on the rest of an epoch; returns true at its end. Stops all ranks at a loss that is not finite.
    fn learn(&mut self, learning_rate: f64) -> Result<bool> {
        let mut prepared = prepared(&mut self.training, self.options)?;
        let mut shown = BatchProgress::new(self.world, "training", prepared.len());
        loop {
            let batch = match agree_on_next_step(self.world, self.stop, prepared.next())? {
                NextStep::Step(batch) => batch.context("all ranks have equally many batches")?,
                NextStep::End => return Ok(true),
                NextStep::Stop => return Ok(false),
            };
            let PictureBatch { pictures, labels } = batch.batch;
            let samples = pictures.dims()[0];
            let step = self.ddp.backward(|model| {
                let scores = model.forward(pictures);
                let loss = CrossEntropyLossConfig::new().init(&scores.device());
                Loss::mean_over(loss.forward(scores, labels), samples)
            })?;
            let loss = step.loss.over_ranks(self.world)?;
            self.ddp.step(&mut self.optimizer, learning_rate, step.gradients)?;
            self.progress.loss.add(loss, samples);
            self.progress.data = batch.state;
            self.steps += 1;
            shown.batch(samples);
        }
    }

    /// The share of all held-out pictures, each counted once, whose class has the highest score; `None` if the ranks
    /// stop on the way.
    fn accuracy(&mut self) -> Result<Option<f64>> {
        let model = self.ddp.module().valid();
        let mut mean = WeightedMean::new();
        let mut prepared = prepared(&mut self.validation, self.options)?;
        let mut shown = BatchProgress::new(self.world, "evaluation", prepared.len());
        loop {
            let batch = match agree_on_next_step(self.world, self.stop, prepared.next())? {
                NextStep::Step(Some(batch)) => batch.batch,
                // Another rank may have one more.
                NextStep::Step(None) => continue,
                NextStep::End => break,
                NextStep::Stop => return Ok(None),
            };
            let PictureBatch { pictures, labels } = batch;
            let samples = pictures.dims()[0];
            let best: Tensor<1, Int> = model.forward(pictures).argmax(1).squeeze_dim(1);
            let right = best.equal(labels).int().sum().into_scalar::<i64>();
            mean.add(right as f64 / samples as f64, samples);
            shown.batch(samples);
        }
        Ok(Some(mean.over_ranks(self.world)?))
    }

    fn write_weights(&mut self, epoch: u64) -> Result<()> {
        let folder = self.options.out.join("weights");
        let made = if self.world.is_main() { fs::create_dir_all(&folder) } else { Ok(()) };
        let made = made.with_context(|| format!("cannot make the folder {}", folder.display()));
        all_or_none(self.world, made)?;
        let file = folder.join(format!("model-{epoch}.safetensors"));
        Ok(save_weights(&mut self.ddp, Export::new(file).for_pytorch())?)
    }

    fn save(&mut self, metric: Option<f64>) -> Result<()> {
        let milestone = Milestone { step: self.steps, metric };
        let (ddp, optimizer) = (&mut self.ddp, &self.optimizer);
        self.checkpoints.save(milestone, ddp, optimizer, &self.progress)?;
        self.steps_saved = self.steps;
        Ok(())
    }

    /// Saves a checkpoint in the middle of an epoch, if there is none of this step.
    fn save_where_it_is(&mut self) -> Result<()> {
        if self.steps > self.steps_saved {
            self.save(None)?;
        }
        if self.world.is_main() {
            match self.steps {
                0 => println!("stopped before the first step"),
                steps => {
                    println!("stopped after step {steps}; the same command continues from there");
                }
            }
        }
        Ok(())
    }
}

fn optimizer() -> ModuleOptimizer {
    // Burn's own default dampens; PyTorch's does not.
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(5e-3)))
        .init()
}

fn prepared(share: &mut Share, options: &Options) -> Result<Prefetched<PictureBatch>> {
    let config = Prefetch::default().with_workers(options.workers.get());
    let (batches, epoch) = (share.batches.clone(), share.loader.epoch());
    let prepare = move |indices: &[usize]| batches.batch(epoch, indices);
    Ok(share.loader.next_epoch().prefetch(config, prepare)?)
}

/// Prints a line, and adds a point to each curve; their file is made for the first.
fn report(
    epoch: u64,
    outcome: Epoch,
    curves: &mut Option<EventWriter>,
    options: &Options,
) -> Result<()> {
    let Epoch { loss, accuracy, learning_rate } = outcome;
    println!(
        "[epoch {epoch}] mean loss {loss:.3}, accuracy {accuracy:.3}, learning rate {learning_rate:.6}"
    );
    let curves = match curves {
        Some(curves) => curves,
        none => none.insert(EventWriter::resume(&options.out, epoch)?),
    };
    curves.scalar("loss", epoch, loss)?;
    curves.scalar("accuracy", epoch, accuracy)?;
    curves.scalar("learning_rate", epoch, learning_rate)?;
    curves.flush()?;
    Ok(())
}
