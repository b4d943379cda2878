//! The epochs. Every rank runs them with the same options and the same folder.
//!
//! Nothing is written before the first epoch is done. What is wrong on one rank, or on all, one rank
//! tells: see `bonfire::all_or_none`.

use anyhow::{Context, Result, ensure};
use bonfire::{
    Best, Checkpoints, Ddp, EventWriter, Keep, Loss, Milestone, PictureBatch, Prefetch, Prefetched,
    Schedule, Training, WeightedMean, World, all_or_none,
};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Int, Tensor};
use vision::config::{Config, OptimSection};
use vision::optimizer::sgd;
use vision::resnet::ResNet;
use vision::stop::{Stop, Turn};

use crate::data::{Data, Share};
use crate::model::start;
use crate::options::Options;

/// What an epoch came to, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Epoch {
    loss: f64,
    accuracy: f64,
    learning_rate: f64,
}

/// Everything that an epoch needs and changes.
struct Trainer<'a> {
    world: &'a World,
    options: &'a Options,
    ddp: Ddp<ResNet>,
    optimizer: ModuleOptimizer,
    training: Share,
    validation: Share,
    checkpoints: Checkpoints,
}

/// Trains on all ranks of `world`, from the beginning or from where an interrupted training in the
/// same folder was.
pub fn train(world: &World, options: &Options, data: &Data) -> Result<()> {
    let (mut trainer, first) = all_or_none(world, Trainer::new(world, options, data))?;
    let schedule = options.schedule(world.world_size());
    let epochs = options.epochs.get() as u64;
    if world.is_main() {
        let (to_learn, to_judge) = data.counts();
        let batch = options.global_batch(world.world_size());
        let headline = options.rate_rule().headline(batch, to_learn, options.lr);
        println!("{to_learn} pictures to learn from, {to_judge} held out; {headline}");
        match first < epochs {
            true => println!("curves: tensorboard --logdir {}", options.out.display()),
            false => {
                println!("{first} epochs are trained already; give more --epochs, or another --out")
            }
        }
    }
    let mut curves = None;
    for epoch in first..epochs {
        let outcome = trainer.epoch(rate(&schedule, epoch))?;
        let reported = match world.is_main() {
            true => report(epoch, outcome, &mut curves, options),
            false => Ok(()),
        };
        all_or_none(world, reported)?;
        trainer.save(epoch, outcome)?;
    }
    Ok(())
}

impl<'a> Trainer<'a> {
    /// With the first epoch that is left to do.
    fn new(world: &'a World, options: &'a Options, data: &Data) -> Result<(Self, u64)> {
        let mut training = data.training(options, world);
        ensure!(
            training.loader.batches_per_epoch() > 0,
            "{} pictures to learn from are fewer than one step of {} takes; choose a smaller \
             --batch-size or fewer ranks",
            data.counts().0,
            options.global_batch(world.world_size()).samples()
        );
        let fresh = Training {
            model: start(options, world)?,
            optimizer: optimizer(),
            state: (),
        };
        let keep = Keep {
            last: 1,
            best: Some(Best::Highest),
        };
        let checkpoints = Checkpoints::open(world, options.out.join("checkpoints"), keep)?;
        let (resumed, milestone) = checkpoints.resume(fresh)?;
        let first = milestone.map_or(0, |milestone| milestone.step);
        training.loader = training.loader.starting_at(first);
        let model = match options.sync_bn {
            true => bonfire::convert_sync_batch_norm(resumed.model, world)?,
            false => resumed.model,
        };
        let trainer = Self {
            world,
            options,
            ddp: Ddp::new(model, world)?,
            optimizer: resumed.optimizer,
            training,
            validation: data.validation(options, world),
            checkpoints,
        };
        Ok((trainer, first))
    }

    fn epoch(&mut self, learning_rate: f64) -> Result<Epoch> {
        Ok(Epoch {
            loss: self.learn(learning_rate)?,
            accuracy: self.accuracy()?,
            learning_rate,
        })
    }

    /// One epoch of training; the mean loss over all ranks. Stops all ranks at a loss that is not
    /// finite.
    fn learn(&mut self, learning_rate: f64) -> Result<f64> {
        let mut mean = WeightedMean::new();
        let mut prepared = prepared(&mut self.training, self.options)?;
        while let Some(batch) = next(&mut prepared, self.world)? {
            let PictureBatch { pictures, labels } =
                batch.context("all ranks have equally many batches")?;
            let samples = pictures.dims()[0];
            let gradients = self.ddp.backward(|model| {
                let scores = model.forward(pictures);
                let loss = CrossEntropyLossConfig::new().init(&scores.device());
                Loss::mean_over(loss.forward(scores, labels), samples)
            })?;
            mean.add(all_or_none(self.world, self.ddp.global_loss())?, samples);
            self.ddp.step(&mut self.optimizer, learning_rate, gradients);
        }
        // Of losses that are over all ranks already.
        Ok(mean.local().unwrap_or(f64::NAN))
    }

    /// The share of all held-out pictures, each counted once, whose class has the highest score.
    fn accuracy(&mut self) -> Result<f64> {
        let model = self.ddp.module().valid();
        let mut mean = WeightedMean::new();
        let mut prepared = prepared(&mut self.validation, self.options)?;
        while let Some(batch) = next(&mut prepared, self.world)? {
            // Another rank may have one more.
            let Some(PictureBatch { pictures, labels }) = batch else {
                continue;
            };
            let samples = pictures.dims()[0];
            let best: Tensor<1, Int> = model.forward(pictures).argmax(1).squeeze_dim(1);
            let right = best.equal(labels).int().sum().into_scalar::<i64>();
            mean.add(right as f64 / samples as f64, samples);
        }
        Ok(mean.over_ranks(self.world.group())?.unwrap_or(f64::NAN))
    }

    fn save(&self, epoch: u64, outcome: Epoch) -> Result<()> {
        let milestone = Milestone {
            step: epoch + 1,
            metric: Some(outcome.accuracy),
        };
        let (module, optimizer) = (self.ddp.module(), &self.optimizer);
        let saved = self.checkpoints.save(milestone, module, optimizer, &());
        Ok(all_or_none(self.world, saved)?)
    }
}

fn rate(schedule: &Schedule, epoch: u64) -> f64 {
    schedule.rate(usize::try_from(epoch).unwrap_or(usize::MAX))
}

/// The tutorials' optimizer.
fn optimizer() -> ModuleOptimizer {
    sgd(&OptimSection {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 5e-3,
        ..Config::default().optim
    })
}

/// The batches of the next epoch, made on threads.
fn prepared(share: &mut Share, options: &Options) -> Result<Prefetched<PictureBatch>> {
    let workers = options.workers.get();
    let config = Prefetch {
        workers,
        depth: 2 * workers,
        ..Prefetch::default()
    };
    let (batches, epoch) = (share.batches.clone(), share.loader.epoch());
    let prepare = move |indices: &[usize]| batches.batch(epoch, indices);
    Ok(share.loader.next_epoch().prefetch(config, prepare)?)
}

/// The next batch, if any rank has one: that of this rank, if it has.
fn next(
    prepared: &mut Prefetched<PictureBatch>,
    world: &World,
) -> Result<Option<Option<PictureBatch>>> {
    Ok(match Stop::never().turn(world, prepared.next())? {
        Turn::Step(prepared) => Some(prepared.map(|prepared| prepared.batch)),
        Turn::End | Turn::Stop => None,
    })
}

/// A line, and a point in each curve; their file is made for the first.
fn report(
    epoch: u64,
    outcome: Epoch,
    curves: &mut Option<EventWriter>,
    options: &Options,
) -> Result<()> {
    let Epoch {
        loss,
        accuracy,
        learning_rate,
    } = outcome;
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
