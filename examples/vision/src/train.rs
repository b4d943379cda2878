//! The training loop. Every rank runs it with the same configuration and the same data set.

mod progress;
mod setup;

use std::fs;

use anyhow::{Context, Result};
use bonfire::checkpoint::{Best, Checkpoints, Keep, Milestone};
use bonfire::data::{Loader, PictureBatch};
use bonfire::ddp::Loss;
use bonfire::report::{Activity, Journal, Report};
use bonfire::weights::{Export, save_weights};
use bonfire::world::StopRequest;
use bonfire::{Ddp, NextStep, World, agree_on_next_step, all_or_none};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::ModuleOptimizer;

use progress::Progress;

use crate::config::Config;
use crate::data::{Data, prefetch};
use crate::evaluate::evaluate;
use crate::meters::Meters;
use crate::model::Model;
use crate::rate::rate;
use crate::tally::{Figures, Tally};
use crate::weights;

/// Checkpoints that are kept besides the best.
const KEPT: Keep = Keep::last(2).and_best(Best::Highest);

/// The best network's parameters, in [`Config::out_dir`].
pub const BEST_FILE: &str = "best.bpk";

/// The parameters after each epoch, in [`Config::out_dir`].
const WEIGHTS_FOLDER: &str = "weights";

#[derive(Debug)]
pub struct Outcome {
    pub end: End,
    pub report: Report,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them
pub enum End {
    Trained(Trained),
    /// It was asked to stop, and its checkpoint is saved.
    Stopped {
        steps: u64,
    },
}

#[derive(Debug)]
pub struct Trained {
    /// The network after the last epoch, without autodiff: the same bits on every rank.
    pub model: Model,
    /// Figures of the test pictures, after the last epoch.
    pub test: Figures,
    /// The highest top-1 accuracy of any epoch, in per cent.
    pub best: f64,
    /// The loss of every step that this run trained, the mean over the samples of all ranks.
    pub losses: Vec<f64>,
}

struct Trainer<'a> {
    world: &'a World,
    config: &'a Config,
    data: &'a Data,
    stop: &'a StopRequest,
    ddp: Ddp<Model>,
    optimizer: ModuleOptimizer,
    loader: Loader,
    progress: Progress,
    journal: Journal,
    checkpoints: Checkpoints,
    steps: u64,
    steps_saved: u64,
    losses: Vec<f64>,
}

/// Starts or continues a training on all ranks of `world`, to the end or until `stop` is requested.
///
/// # Errors
/// If the data, the checkpoint or the folder cannot be used, if a loss is not finite on any rank, or if a rank fails.
/// An error of one rank, or of all, is reported by one rank: see [`all_or_none`].
pub fn train(world: &World, config: &Config, data: &Data, stop: &StopRequest) -> Result<Outcome> {
    let mut trainer = Trainer::new(world, config, data, stop)?;
    let end = match trainer.train()? {
        Some(test) => End::Trained(Trained {
            model: trainer.ddp.module().valid(),
            test,
            best: trainer.progress.best.unwrap_or(test.top1),
            losses: trainer.losses,
        }),
        None => {
            trainer.save_where_it_is()?;
            End::Stopped { steps: trainer.steps }
        }
    };
    let report = trainer.journal.close()?;
    Ok(Outcome { end, report })
}

impl Trainer<'_> {
    /// Trains all remaining epochs; returns the figures of the last, or `None` if it stops.
    fn train(&mut self) -> Result<Option<Figures>> {
        let first = self.loader.epoch() as usize;
        let epochs = self.config.optim.max_epoch.get();
        let mut test = None;
        // A run may have stopped between the last step of an epoch and its evaluation.
        if self.progress.data.epoch < first as u64 {
            let Some(figures) = self.finish_epoch(first - 1)? else {
                return Ok(None);
            };
            test = Some(figures);
        }
        for epoch in first..epochs {
            let is_whole = self.train_epoch(epoch)?;
            let figures = if is_whole { self.finish_epoch(epoch)? } else { None };
            if figures.is_none() {
                return Ok(None);
            }
            test = figures;
        }
        if test.is_none() {
            let line = format!("all {epochs} epochs are trained already");
            self.journal.note(&line);
            test = self.evaluate()?;
        }
        Ok(test)
    }

    /// Returns true at the end of the epoch.
    fn train_epoch(&mut self, epoch: usize) -> Result<bool> {
        let (world, config) = (self.world, self.config);
        let (k, print_freq) = (config.train.topk.get(), config.train.print_freq.get());
        let rate = rate(&config.optim, epoch);
        let batches = self.data.training_batches(config, self.progress.seed, world)?;
        let prepare = move |indices: &[usize]| batches.batch(epoch as u64, indices);
        let share = self.loader.next_epoch();
        let steps = share.len();
        let epochs_after = config.optim.max_epoch.get() - epoch - 1;
        let steps_after = self.loader.batches_per_epoch() * epochs_after;
        let mut meters = Meters::new(format!("TRAIN [{}]", epoch + 1), steps, k);
        let mut tally = Tally::default();
        let mut prefetched = share.prefetch(prefetch(config), prepare)?;
        loop {
            let prepared = self.journal.time(Activity::Data, || prefetched.next());
            let prepared = match agree_on_next_step(world, self.stop, prepared)? {
                NextStep::Step(prepared) => {
                    prepared.context("all ranks have equally many batches")?
                }
                NextStep::End => return Ok(true),
                NextStep::Stop => return Ok(false),
            };
            meters.data_ready();
            let loss = self.step(prepared.batch, rate, &mut tally)?;
            self.progress.data = prepared.state;
            self.describe()?;
            meters.step();
            if meters.is_due(print_freq) {
                let so_far = tally.over_ranks(world)?;
                let so_far = so_far.context("the batch had samples")?;
                self.journal.note(&meters.line(loss, so_far, steps_after));
                self.journal.figures(Some(rate))?;
            }
        }
    }

    /// Trains on a batch; returns the mean loss of all ranks.
    fn step(&mut self, batch: PictureBatch, rate: f64, tally: &mut Tally) -> Result<f64> {
        let (samples, labels) = (batch.labels.dims()[0], batch.labels.clone());
        let cross_entropy = CrossEntropyLossConfig::new().init(&batch.pictures.device());
        // ANCHOR: step
        let step = self.ddp.backward(|model| {
            let scores = model.forward(batch.pictures);
            let loss = cross_entropy.forward(scores.clone(), batch.labels);
            (Loss::mean_over(loss, samples), scores.detach())
        })?;
        self.journal.step(&step);
        // The loss of all ranks: if it is not finite, all of them stop here, and the launcher reports it once.
        let loss = step.loss.over_ranks(self.world)?;
        self.journal.time(Activity::Optimizer, || {
            self.ddp.step(&mut self.optimizer, rate, step.gradients)
        })?;
        // ANCHOR_END: step
        self.losses.push(loss);
        self.steps += 1;
        let k = self.config.train.topk.get();
        tally.add(step.output, labels, step.loss.value()?, k);
        Ok(loss)
    }

    fn describe(&self) -> Result<()> {
        if self.losses.len() > 1 {
            return Ok(());
        }
        let written = if self.world.is_main() { self.config.save().map(drop) } else { Ok(()) };
        Ok(all_or_none(self.world, written)?)
    }

    /// Evaluates and saves; `None` if it stops before.
    fn finish_epoch(&mut self, epoch: usize) -> Result<Option<Figures>> {
        let Some(test) = self.evaluate()? else {
            return Ok(None);
        };
        let is_best = self.progress.best.is_none_or(|best| test.top1 > best);
        if is_best {
            self.progress.best = Some(test.top1);
        }
        self.progress.next_epoch(epoch + 1);
        let topk = format!("test_accuracy_top{}", self.config.train.topk);
        self.journal.value("test_loss", test.loss)?;
        self.journal.value("test_accuracy", test.top1)?;
        self.journal.value(&topk, test.topk)?;
        self.save(Some(test.top1))?;
        let written = if is_best && self.world.is_main() {
            let path = self.config.out_dir.join(BEST_FILE);
            weights::save(&self.ddp.module().valid(), &path)
        } else {
            Ok(())
        };
        all_or_none(self.world, written)?;
        self.write_weights(epoch + 1)?;
        self.journal.note(&format!(
            "epoch {} | loss {:.4} | Acc@1 {:.3} | Acc@{} {:.3} | best Acc@1 {:.3}",
            epoch + 1,
            test.loss,
            test.top1,
            self.config.train.topk,
            test.topk,
            self.progress.best.unwrap_or(test.top1),
        ));
        Ok(Some(test))
    }

    fn evaluate(&mut self) -> Result<Option<Figures>> {
        let model = self.ddp.module().valid();
        self.journal.time(Activity::Evaluation, || {
            evaluate(self.world, &model, self.data, self.config, self.stop)
        })
    }

    /// Writes the parameters after an epoch, counted from 1, in PyTorch's layout.
    fn write_weights(&mut self, epoch: usize) -> Result<()> {
        let folder = self.config.out_dir.join(WEIGHTS_FOLDER);
        let made = if self.world.is_main() { fs::create_dir_all(&folder) } else { Ok(()) };
        let made = made.with_context(|| format!("cannot make the folder {}", folder.display()));
        all_or_none(self.world, made)?;
        let file = folder.join(format!("model-{epoch}.safetensors"));
        Ok(save_weights(&mut self.ddp, Export::new(file).for_pytorch())?)
    }

    fn save(&mut self, metric: Option<f64>) -> Result<()> {
        let milestone = Milestone { step: self.steps, metric };
        let (ddp, progress) = (&mut self.ddp, &self.progress);
        self.journal.time(Activity::Checkpoint, || {
            self.checkpoints.save(milestone, ddp, &self.optimizer, progress)
        })?;
        self.steps_saved = self.steps;
        Ok(())
    }

    /// Saves a checkpoint in the middle of an epoch, if there is none of this step.
    fn save_where_it_is(&mut self) -> Result<()> {
        if self.steps > self.steps_saved {
            self.save(None)?;
        }
        let steps = self.steps;
        let auto_resume = self.config.train.auto_resume;
        let line = match (steps, auto_resume) {
            (0, _) => "stopped before the first step".to_owned(),
            (_, true) => {
                format!("stopped after step {steps}; the same command continues from there")
            }
            (_, false) => format!("stopped after step {steps}; TRAIN.AUTO_RESUME true continues"),
        };
        self.journal.note(&line);
        Ok(())
    }
}
