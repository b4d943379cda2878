//! Makes a training of a model, its data and a configuration by one call.

mod data;
mod diloco;
mod engine;
mod evaluation;
mod finish;
mod memory;
mod mesh;
mod optimizer;
mod parts;
mod resolve;
mod setup;
mod stages;

use std::fmt;
use std::sync::Arc;

use bonfire_config::Config;
use bonfire_data::SamplerState;
use bonfire_launch::StopRequest;
use bonfire_optim::DeferredScale;
use bonfire_plan::memory::Training;
use bonfire_report::{Activity, Figures, Journal};
use bonfire_train::diloco::Diloco;
use bonfire_train::{
    Checkpoints, Clip, Ddp, IntoLoss, Loss, LossScaler, Milestone, Step, StepOptions, World,
};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{BoxError, Result};
use crate::{NextStep, agree_on_next_step};
use data::{Fed, Feed};
use engine::{Engine, Model};

pub use data::Data;
pub use parts::Parts;
pub use setup::{prepare, recompute};
pub use stages::Stages;

pub(crate) use memory::{around, configured};
pub(crate) use mesh::placed;
pub(crate) use resolve::ddp_config;

/// A training on all ranks: it owns the model, the optimizer, the place in the data, the learning rate, clipping,
/// the scale of the loss, checkpoints and the journal. [`prepare`] makes it. Every rank calls the same methods in the
/// same order. [`next_batch`](Self::next_batch) returns a `B`: a batch, or with [`Stages`] the micro-batches of a step.
///
/// ```
/// use bonfire::config::Config;
/// use bonfire::trainer::{Data, prepare};
/// use bonfire::{Error, spawn};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
///
/// let losses = spawn(2, |world| {
///     let config = Config::default().with_words(["batch.micro=4", "optimizer.lr=0.1", "epochs=20"])?;
///     let model = LinearConfig::new(1, 1).init(&world.device());
///     let device = world.device().autodiff();
///     let data = Data::new(64, move |indices: &[usize]| {
///         let x: Vec<f32> = indices.iter().map(|&index| index as f32 / 64.0).collect();
///         let x = Tensor::<1>::from_floats(x.as_slice(), &device).reshape([indices.len(), 1]);
///         (x.clone(), x * 3.0)
///     });
///     let mut trainer = prepare(&world, &config, (model, data))?;
///     let mut last = f64::NAN;
///     while let Some(batch) = trainer.next_batch()? {
///         let done = trainer.step(batch, |model: &Linear, (x, y)| {
///             (model.forward(x) - y).powi_scalar(2).mean()
///         })?;
///         last = done.loss.value()?;
///     }
///     trainer.finish()?;
///     Ok::<_, Error>(last)
/// })?;
/// assert!(losses.iter().all(|loss| *loss < 0.05), "{losses:?}");
/// # Ok::<(), Error>(())
/// ```
pub struct Trainer<M: Model, B> {
    world: World,
    place: mesh::Place,
    config: Config,
    engine: M::Engine,
    optimizer: ModuleOptimizer,
    rates: parts::Rates,
    /// The learning rate of the newest step of this run.
    rate: Option<f64>,
    clip: Option<Clip>,
    /// The optimizer's handle on factors of gradients, if it has one.
    deferred: Option<DeferredScale>,
    /// The exchanges of workers that train alone, until they end.
    diloco: Option<Diloco>,
    feed: Feed<B>,
    /// Samples of a forward pass, and forward passes of a step, on this rank.
    micro: usize,
    accumulation: u64,
    /// Forward passes of a call of `step`.
    passes_per_call: u64,
    checkpoints: Option<Checkpoints>,
    journal: Journal,
    stop: Arc<StopRequest>,
    is_stopped: bool,
    progress: Progress,
    /// Forward passes since the last step, and the position in the data after the newest of them.
    passes: u64,
    reached: Fed,
    /// True if there is nothing new since the last checkpoint: no step, and no state of the program.
    is_saved: bool,
    /// The plan of its memory, if activations are known.
    planned: Option<Training>,
    /// Facts that the program adds to the report.
    facts: Vec<(String, String)>,
}

impl<M: Model, B> fmt::Debug for Trainer<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("config", &self.config)
            .field("steps", &self.progress.steps)
            .finish_non_exhaustive()
    }
}

/// The parts of a checkpoint besides model and optimizer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Progress {
    steps: u64,
    /// Epochs whose steps are all done.
    epochs: u64,
    /// True if the last step ended an interval or an epoch, after which it is not evaluated yet.
    evaluation_is_due: bool,
    /// Forward passes of this rank, and how many of them a step has.
    passes: u64,
    accumulation: Option<u64>,
    /// Of the configuration: batches of endless data and random numbers follow from it.
    seed: Option<u64>,
    /// The position in the data, if it is distributed by epochs.
    data: Option<SamplerState>,
    scaler: Option<LossScaler>,
    state: Option<ciborium::Value>,
}

/// The result of [`Trainer::step`]: loss, output and step.
#[derive(Debug)]
#[non_exhaustive]
pub struct StepOutput<T = ()> {
    /// The loss of the batch, detached from its graph.
    pub loss: Loss,
    /// The forward pass's output besides the loss.
    pub output: T,
    /// Steps of the optimizer so far, if this batch was the last of one. `None` between two, and where gradients
    /// overflowed and the step was skipped: under f16, and with `precision.skip_overflow`.
    pub step: Option<u64>,
}

impl<M: Model, B: Send + 'static> Trainer<M, B> {
    /// Returns the next batch of this rank; `None` when all steps are done, or when the ranks were asked to stop, by
    /// Ctrl-C or SIGTERM. A training is only stopped between two steps. The same program continues from there if it
    /// has a folder for checkpoints.
    ///
    /// # Errors
    /// The data's of any rank, on all ranks; or if a rank has failed.
    #[track_caller]
    pub fn next_batch(&mut self) -> Result<Option<B>> {
        loop {
            if self.is_done() {
                return Ok(None);
            }
            let prepared = self
                .journal
                .time(Activity::Data, || self.feed.next(self.progress.passes + self.passes));
            // No rank stops in the middle of a step.
            let never = StopRequest::never();
            let stop = match self.passes {
                0 => &self.stop,
                _ => &never,
            };
            match agree_on_next_step(&self.world, stop, prepared)? {
                NextStep::Step(Some((batch, fed))) => {
                    self.reached = fed;
                    return Ok(Some(batch));
                }
                // Batches are equally many, unless the program's own data differs on one rank.
                NextStep::Step(None) => {
                    let cause =
                        "another rank has one batch more than this one; all need equally many";
                    return Err(crate::Error::Program(cause.into()));
                }
                NextStep::End => self.feed.next_epoch()?,
                NextStep::Stop => {
                    self.end_exchanges()?;
                    self.note_stop();
                    return Ok(None);
                }
            }
        }
    }

    fn note_stop(&mut self) {
        self.is_stopped = true;
        let steps = self.progress.steps;
        self.journal.note(&match &self.checkpoints {
            _ if steps == 0 => "stopped before the first step".to_owned(),
            Some(_) => format!("stopped after step {steps}; the same command continues from there"),
            None => {
                format!("stopped after step {steps}; nothing is kept without checkpoints.folder")
            }
        });
    }

    fn is_done(&self) -> bool {
        match self.config.steps {
            Some(steps) => self.progress.steps >= steps,
            None => {
                self.passes == 0
                    && self.feed.epochs_begun() >= self.config.epochs
                    && self.feed.batches_left() == 0
            }
        }
    }

    /// Seeds the random numbers of the next forward pass, and counts it.
    fn begin_pass(&mut self) {
        self.place.seed_step(self.config.seed, self.progress.passes + self.passes);
        self.passes += self.passes_per_call;
        self.progress.evaluation_is_due = false;
    }

    /// Steps the optimizer with the gradients of all forward passes since the last step.
    fn update<T>(&mut self, done: Step<T>) -> Result<StepOutput<T>> {
        self.journal.step(&done);
        let (position, is_last) = (&self.reached.state, self.reached.is_last);
        let epoch = position.as_ref().map_or(0, |position| position.epoch);
        let rate = (self.rates)(self.progress.steps, epoch);
        self.rate = Some(rate);
        let options = StepOptions::default()
            .with_scaler(self.progress.scaler.as_mut())
            .with_clip(self.clip)
            .with_deferred_scale(self.deferred.as_ref());
        let (engine, optimizer) = (&mut self.engine, &mut self.optimizer);
        let stepped = self.journal.time(Activity::Optimizer, || {
            engine.step_with(optimizer, rate, done.gradients, options)
        })?;
        if !stepped {
            self.journal.skipped();
        }
        self.progress.passes += self.passes;
        self.passes = 0;
        self.progress.data.clone_from(position);
        self.progress.epochs = epoch + u64::from(is_last);
        self.progress.steps += u64::from(stepped);
        if let Some(diloco) = &mut self.diloco {
            diloco.step_in(self.engine.ddp())?;
            if self.is_done() {
                self.end_exchanges()?;
            }
        }
        self.progress.evaluation_is_due = match self.config.evaluation.every {
            Some(every) => stepped && self.progress.steps.is_multiple_of(every),
            None => is_last,
        } || self.is_done();
        self.is_saved &= !stepped;
        if stepped {
            self.after_step(&done.loss)?;
        }
        Ok(StepOutput {
            loss: done.loss,
            output: done.output,
            step: stepped.then_some(self.progress.steps),
        })
    }

    /// Gives all workers of DiLoCo the mean of their parameters, unless they have it.
    fn end_exchanges(&mut self) -> Result<()> {
        match self.diloco.take() {
            Some(mut diloco) => Ok(diloco.finish_in(self.engine.ddp())?),
            None => Ok(()),
        }
    }

    /// Shows figures and saves a checkpoint after a step, if they are due.
    fn after_step(&mut self, loss: &Loss) -> Result<()> {
        let steps = self.progress.steps;
        if steps.is_multiple_of(self.config.report.every) || Some(steps) == self.config.steps {
            loss.over_ranks(self.place.replicas())?;
            self.figures()?;
        }
        match self.config.checkpoints.every {
            Some(every) if steps.is_multiple_of(every) => self.save(None),
            _ => Ok(()),
        }
    }

    /// Records and shows the figures of the steps since the last ones, besides those of every `report.every` steps, and
    /// returns them; `None` if there was no step since. Every rank must call it. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteLoss`](crate::ddp::TrainError::NonFiniteLoss) on the rank whose loss it is; if they cannot
    /// be written, or if a rank has failed.
    #[track_caller]
    pub fn figures(&mut self) -> Result<Option<Figures>> {
        Ok(self.journal.figures(self.rate)?)
    }

    /// Records a scalar that is the same on all ranks, such as a validation loss, and shows it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn value(&mut self, tag: &str, value: f64) -> Result<()> {
        Ok(self.journal.value(tag, value)?)
    }

    /// Shows a line on rank 0, above the progress.
    pub fn note(&self, line: &str) {
        self.journal.note(line);
    }

    /// Saves the training as it was after its last step, with a figure by which `checkpoints.best` finds the best
    /// checkpoint, if there is one. Where there is a checkpoint of this step already, it gets the figure, or is
    /// saved again with a new [state](Self::set_state). Without `checkpoints.folder` it does nothing.
    ///
    /// # Errors
    /// As [`Checkpoints::save`](crate::checkpoint::Checkpoints::save), which refuses a training that has diverged.
    #[track_caller]
    pub fn save(&mut self, metric: Option<f64>) -> Result<()> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(());
        };
        let milestone = Milestone { step: self.progress.steps, metric };
        if self.is_saved {
            let rated = metric.map(|_| {
                let journal = &mut self.journal;
                journal.time(Activity::Checkpoint, || checkpoints.rate(milestone))
            });
            return Ok(rated.transpose().map(drop)?);
        }
        let (ddp, optimizer, progress) = (self.engine.ddp(), &self.optimizer, &self.progress);
        let background = self.config.checkpoints.background;
        self.journal.time(Activity::Checkpoint, || {
            if background {
                checkpoints.save_in_background(milestone, ddp, optimizer, progress)
            } else {
                checkpoints.save(milestone, ddp, optimizer, progress)
            }
        })?;
        self.is_saved = true;
        Ok(())
    }

    /// Returns the steps of the optimizer so far, those of earlier runs included.
    pub fn steps(&self) -> u64 {
        self.progress.steps
    }

    /// Returns the epochs whose steps are all done so far, those of earlier runs included; 0 for data without end.
    pub fn epochs(&self) -> u64 {
        self.progress.epochs
    }

    /// Returns the batches of this rank that are left in the epoch, after the newest that
    /// [`next_batch`](Self::next_batch) has returned; 0 for data without end.
    pub fn batches_left(&self) -> usize {
        self.feed.batches_left()
    }

    /// Returns the exit code of a training that was asked to stop before its end, as a shell has it: 130 after Ctrl-C; or
    /// 75 on a rank that stops because another was asked. `None` if none was.
    pub fn stop_code(&self) -> Option<u8> {
        self.is_stopped.then(|| self.stop.exit_code())
    }

    /// Sets the program's own state, such as its best accuracy, which is the same on all ranks. Checkpoints that are
    /// saved from then on have it.
    ///
    /// # Errors
    /// [`Error::Program`](crate::Error::Program) if the state cannot be serialized.
    pub fn set_state<S: Serialize>(&mut self, state: &S) -> Result<()> {
        let state = ciborium::Value::serialized(state);
        self.is_saved = false;
        self.progress.state =
            Some(state.map_err(|cause| crate::Error::from_program(cause.into()))?);
        Ok(())
    }

    /// Returns the program's own state; `None` if it has set none, here or before the checkpoint from which the training
    /// continues.
    ///
    /// # Errors
    /// [`Error::Program`](crate::Error::Program) for a checkpoint with a state of another type.
    pub fn state<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        let state = self.progress.state.as_ref().map(ciborium::Value::deserialized);
        state.transpose().map_err(|cause| {
            let cause =
                format!("the program's state in the checkpoint is of another type: {cause}");
            crate::Error::Program(cause.into())
        })
    }

    /// Returns the loss scaler, with the number of skipped steps: under f16, and with `precision.skip_overflow`.
    pub fn scaler(&self) -> Option<&LossScaler> {
        self.progress.scaler.as_ref()
    }
}

impl<M: Module, B: Send + 'static> Trainer<M, B> {
    /// Trains on a batch. Forward and backward run for every batch; the gradients are averaged over the ranks, and the
    /// optimizer steps, once for every `batch.accumulation` batches, and at the end of an epoch. Each batch of a step
    /// has the weight of its samples, unless the loss sets another.
    ///
    /// `forward` returns the same as that of [`Ddp::backward`](crate::Ddp::backward).
    ///
    /// # Errors
    /// As [`Ddp::backward`](crate::Ddp::backward) and [`Ddp::step`](crate::Ddp::step);
    /// [`TrainError::NonFiniteLoss`](crate::ddp::TrainError::NonFiniteLoss) in those steps alone whose figures are shown,
    /// every `report.every`: reading a loss waits for the device. In the steps that are saved, as [`save`](Self::save).
    #[track_caller]
    pub fn step<L: IntoLoss>(
        &mut self,
        batch: B,
        forward: impl FnOnce(&M, B) -> L,
    ) -> Result<StepOutput<L::Output>> {
        self.begin_pass();
        let scaler = self.progress.scaler.as_ref();
        // Where a step is one batch of each rank, all have equally many.
        let samples = self.reached.samples.filter(|_| self.accumulation > 1);
        let forward = |model: &M| {
            let (loss, output) = forward(model, batch).into_loss()?;
            let loss = match samples {
                Some(samples) => loss.or_mean_over(samples),
                None => loss,
            };
            let loss = match scaler {
                Some(scaler) => scaler.scale(loss),
                None => loss,
            };
            Ok::<_, BoxError>((loss, output))
        };
        if self.passes < self.accumulation && !self.reached.is_last {
            let done = self.engine.no_sync(forward)?;
            self.journal.micro_step(&done);
            return Ok(StepOutput { loss: done.loss, output: done.output, step: None });
        }
        let done = self.engine.backward(forward)?;
        self.update(done)
    }

    /// Returns the model in its group, for operations that a trainer lacks. See [`Ddp`].
    pub fn ddp(&mut self) -> &mut Ddp<M> {
        &mut self.engine
    }
}

#[cfg(test)]
mod tests;
