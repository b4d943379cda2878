//! The training loop. Every rank runs it with the same configuration and the same data set.

mod setup;

use anyhow::{Context, Result};
use bonfire::data::PictureBatch;
use bonfire::ddp::Loss;
use bonfire::trainer::Trainer;
use bonfire::{World, all_or_none};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::Tensor;

use crate::config::Config;
use crate::data::Data;
use crate::evaluate::evaluate;
use crate::meters::Meters;
use crate::model::Model;
use crate::tally::{Figures, Tally};
use crate::weights;

/// The best network's parameters, in [`Config::out_dir`].
pub const BEST_FILE: &str = "best.bpk";

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them
pub enum End {
    Trained(Trained),
    /// It was asked to stop, and its checkpoint is saved.
    Stopped {
        /// The exit code of the process.
        code: u8,
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

struct Run<'a> {
    world: &'a World,
    config: &'a Config,
    data: &'a Data,
    trainer: Trainer<Model, PictureBatch>,
    /// The highest accuracy so far, in per cent: the program's state in a checkpoint.
    best: Option<f64>,
    losses: Vec<f64>,
}

/// Starts or continues a training on all ranks of `world`, to the end or until they are asked to stop. The report is
/// then in [`Config::out_dir`].
///
/// # Errors
/// If the data, the checkpoint or the folder cannot be used, if a loss is not finite on any rank, or if a rank fails.
/// An error of one rank, or of all, is reported by one rank: see [`all_or_none`].
pub fn train(world: &World, config: &Config, data: &Data) -> Result<End> {
    let config = setup::seeded(world, config)?;
    let trainer = setup::prepared(world, &config, data)?;
    let best = trainer.state()?;
    let mut run = Run { world, config: &config, data, trainer, best, losses: Vec::new() };
    let test = run.epochs()?;
    let Run { mut trainer, best, losses, .. } = run;
    let (model, code) = (trainer.ddp().module().valid(), trainer.stop_code());
    if code.is_some() && !config.train.auto_resume {
        trainer.note("with TRAIN.AUTO_RESUME true");
    }
    trainer.finish()?;
    Ok(match code {
        Some(code) => End::Stopped { code },
        None => {
            let test = test.context("a training ends with a test")?;
            End::Trained(Trained { model, test, best: best.unwrap_or(test.top1), losses })
        }
    })
}

impl Run<'_> {
    /// Trains all remaining epochs, or until the ranks stop; returns the last figures.
    fn epochs(&mut self) -> Result<Option<Figures>> {
        let (k, max_epoch) = (self.config.train.topk.get(), self.config.optim.max_epoch.get());
        let batches_per_epoch = setup::batches_per_epoch(self.world, self.config, self.data);
        let (mut test, mut shown) = (None, None);
        loop {
            // A run may have stopped between the last step of an epoch and its evaluation.
            if self.trainer.evaluation_is_due() {
                shown = None;
                test = self.finish_epoch()?;
                if test.is_none() {
                    break;
                }
            }
            let epoch = self.trainer.epochs() as usize;
            let new = || (Meters::new(format!("TRAIN [{}]", epoch + 1), k), Tally::default());
            let (meters, tally) = shown.get_or_insert_with(new);
            let Some(batch) = self.trainer.next_batch()? else {
                break;
            };
            meters.data_ready();
            let loss = self.step(batch, tally)?;
            meters.step(self.trainer.batches_left());
            if meters.is_due(self.config.train.print_freq.get()) {
                let so_far = tally.over_ranks(self.world)?;
                let so_far = so_far.context("the batch had samples")?;
                let steps_after = batches_per_epoch * (max_epoch - epoch - 1);
                self.trainer.note(&meters.line(loss, so_far, steps_after));
                self.trainer.figures()?;
            }
        }
        if test.is_none() && self.trainer.stop_code().is_none() {
            self.trainer.note(&format!("all {max_epoch} epochs are trained already"));
            test = self.evaluate()?;
        }
        Ok(test)
    }

    /// Trains on a batch; returns the mean loss of all ranks.
    fn step(&mut self, batch: PictureBatch, tally: &mut Tally) -> Result<f64> {
        let labels = batch.labels.clone();
        let done = self.trainer.step(batch, forward)?;
        // If it is not finite, all ranks end here, and the launcher reports it once.
        let loss = done.loss.over_ranks(self.world)?;
        if self.losses.is_empty() {
            let written = if self.world.is_main() { self.config.save().map(drop) } else { Ok(()) };
            all_or_none(self.world, written)?;
        }
        self.losses.push(loss);
        tally.add(done.output, labels, done.loss.value()?, self.config.train.topk.get());
        Ok(loss)
    }

    /// Evaluates and saves; `None` if the ranks stop before.
    fn finish_epoch(&mut self) -> Result<Option<Figures>> {
        let Some(test) = self.evaluate()? else {
            return Ok(None);
        };
        let is_best = self.best.is_none_or(|best| test.top1 > best);
        let best = if is_best { test.top1 } else { self.best.unwrap_or(test.top1) };
        self.best = Some(best);
        let (out_dir, topk) = (&self.config.out_dir, self.config.train.topk);
        let trainer = &mut self.trainer;
        trainer.value("test_loss", test.loss)?;
        trainer.value("test_accuracy", test.top1)?;
        trainer.value(&format!("test_accuracy_top{topk}"), test.topk)?;
        let written = if is_best && self.world.is_main() {
            weights::save(&trainer.ddp().module().valid(), &out_dir.join(BEST_FILE))
        } else {
            Ok(())
        };
        all_or_none(self.world, written)?;
        let epoch = trainer.epochs();
        weights::save_epoch(self.world, trainer.ddp(), out_dir, epoch)?;
        // Last: after a kill before it the epoch is trained again, and its files are written.
        trainer.set_state(&best)?;
        trainer.save(Some(test.top1))?;
        trainer.note(&format!(
            "epoch {epoch} | loss {:.4} | Acc@1 {:.3} | Acc@{topk} {:.3} | best Acc@1 {best:.3}",
            test.loss, test.top1, test.topk,
        ));
        Ok(Some(test))
    }

    fn evaluate(&mut self) -> Result<Option<Figures>> {
        let (world, config, data) = (self.world, self.config, self.data);
        self.trainer.evaluate_with(|model, stop| evaluate(world, model, data, config, stop))
    }
}

/// The mean loss of a batch, and the scores of its pictures.
fn forward(model: &Model, PictureBatch { pictures, labels }: PictureBatch) -> (Loss, Tensor<2>) {
    let samples = labels.dims()[0];
    let scores = model.forward(pictures);
    let loss = CrossEntropyLossConfig::new().init(&scores.device());
    let loss = loss.forward(scores.clone(), labels);
    (Loss::mean_over(loss, samples), scores.detach())
}
