//! Records a training: times, losses, and what rank 0 shows and writes of them.
//!
//! It never decides anything about the training, and reads the device only for figures.

mod config;
mod files;
mod host;
mod progress;
mod run_folder;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Curve, MemoryUse, Point, Report, SlowRank, TimeSplit};
use bonfire_train::{Loss, MicroStep, Resident, Step, World};
use burn::tensor::{DType, Tensor};

use crate::ReportError;
use files::Files;
use progress::Progress;

pub use config::{JournalConfig, JournalDisplay};
pub use progress::BatchProgress;
pub use run_folder::RunFolder;

/// An activity that the loop times itself; [`Ddp`](bonfire_train::Ddp) times forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Waiting for a batch, and copying it to the device.
    Data,
    /// Clipping and the optimizer. A GPU works asynchronously: its optimizer's time beyond the call counts in the next
    /// step's forward pass.
    Optimizer,
    /// Passes over validation data, between training steps.
    Evaluation,
    /// Writing checkpoints, as far as the training waits.
    Checkpoint,
}

/// The record of one rank. All ranks keep one and call the same methods in the same order, because the figures are
/// over all ranks; only rank 0 shows and writes anything.
///
/// ```no_run
/// # use bonfire_report::{Activity, Journal, JournalConfig};
/// # use bonfire_train::{Ddp, World};
/// # use burn::nn::Linear;
/// # use burn::optim::ModuleOptimizer;
/// # use burn::tensor::{DType, Tensor};
/// # fn train(world: &World, mut ddp: Ddp<Linear>, mut optimizer: ModuleOptimizer,
/// #     next_batch: impl Fn() -> Tensor<2>) -> Result<(), Box<dyn std::error::Error>> {
/// let config = JournalConfig::new("a linear model", 1000)
///     .with_samples_per_step(64, "points")
///     .with_new_folder("runs", "linear");
/// let mut journal = Journal::new(world, config)?;
/// for number in 1..=1000 {
///     let batch = journal.time(Activity::Data, || next_batch());
///     let step = ddp.backward(|model| model.forward(batch).powi_scalar(2).mean())?;
///     journal.step(&step);
///     journal.time(Activity::Optimizer, || ddp.step(&mut optimizer, 1e-3, step.gradients))?;
///     if number % 20 == 0 {
///         journal.figures(Some(1e-3))?;
///     }
/// }
/// let report = journal.close()?;
/// if let (true, Some(folder)) = (world.is_main(), &report.folder) {
///     println!("{report}");
///     report.write(folder)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Journal {
    world: World,
    config: JournalConfig,
    progress: Progress,
    files: Option<Files>,
    /// The folder of the run, and facts about rank 0's machine: the same on all ranks.
    folder: Option<PathBuf>,
    host: Vec<(String, String)>,
    started: Instant,
    /// Steps done, those of an earlier run included.
    steps: u64,
    times: TimeSplit,
    times_shown: TimeSplit,
    steps_shown: u64,
    losses: LossSum,
    /// The losses of the newest step, and of micro-batches since: some steps are skipped.
    newest: LossSum,
    /// True if `newest` is of a step that has been recorded.
    is_step: bool,
    curves: Vec<Curve>,
}

/// The figures since the last call, over all ranks: the same on every one.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// The number of steps done.
    pub step: u64,
    /// Training loss: the mean over samples where losses are weighted, over batches else.
    pub loss: f64,
    /// Samples of all ranks in a second on the rank that took longest, evaluation and checkpoints left out.
    pub samples_per_second: f64,
    /// The unit of samples, in the plural: `images`, `tokens`.
    pub unit: &'static str,
    /// The number of ranks that train.
    pub ranks: usize,
    /// The part of its device's peak that a rank has used for the model, from 0 to 1, if [`JournalConfig::flops`] has
    /// a peak.
    pub model_flops_utilisation: Option<f64>,
    /// Communication that backward did not hide, for one step: the mean over ranks.
    pub exposed_communication: Duration,
    /// The learning rate, if the caller passes it.
    pub learning_rate: Option<f64>,
}

/// The sum of this rank's losses since the last figures; read only then, because reading one waits for the device.
#[derive(Debug, Default)]
struct LossSum {
    sum: Option<Tensor<1>>,
    weight: usize,
}

impl Journal {
    /// Starts the clock. Every rank must call it.
    ///
    /// # Errors
    /// [`ReportError::Unwritable`] on rank 0 if the folder is not writable; the group then ends, and the other ranks
    /// return [`ReportError::Collective`].
    #[track_caller]
    pub fn new(world: &World, config: JournalConfig) -> Result<Self, ReportError> {
        let progress = match config.display {
            _ if !world.is_main() => Progress::Silent,
            JournalDisplay::Progress => Progress::new(config.steps_done, config.steps),
            JournalDisplay::Notes => Progress::Notes,
        };
        let folder = config.folder.as_ref().filter(|_| world.is_main());
        let files = folder.map(|folder| Files::new(folder, config.steps_done));
        let files = world.group().or_abort(files.transpose())?;
        let folder = files.as_ref().map(|files| files.folder().to_owned());
        let (folder, host) = host::of_rank_0(world, folder)?;
        Ok(Self {
            world: world.clone(),
            progress,
            files,
            folder,
            host,
            started: Instant::now(),
            steps: config.steps_done,
            times: TimeSplit::default(),
            times_shown: TimeSplit::default(),
            steps_shown: config.steps_done,
            config,
            losses: LossSum::default(),
            newest: LossSum::default(),
            is_step: false,
            curves: Vec::new(),
        })
    }

    /// Returns the folder of the run, if it has one: the same on all ranks.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Runs `work` and records its time under `activity`.
    pub fn time<T>(&mut self, activity: Activity, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let part = match activity {
            Activity::Data => &mut self.times.data,
            Activity::Optimizer => &mut self.times.optimizer,
            Activity::Evaluation => &mut self.times.evaluation,
            Activity::Checkpoint => &mut self.times.checkpoint,
        };
        *part += start.elapsed();
        result
    }

    /// Records a step that [`Ddp::backward`](bonfire_train::Ddp::backward) has returned, with the loss of its last
    /// micro-batch. Nothing is read from the device.
    pub fn step<T>(&mut self, step: &Step<T>) {
        self.times.forward_backward += step.timing.forward_backward;
        self.times.exposed_communication += step.timing.exposed_communication;
        self.settle();
        self.steps += 1;
        self.newest.add(&step.loss);
        self.is_step = true;
    }

    /// Takes back the last recorded step, which the optimizer has skipped because gradients overflowed: see
    /// [`LossScaler`](bonfire_train::LossScaler). Its time remains.
    pub fn skipped(&mut self) {
        if std::mem::take(&mut self.is_step) {
            self.steps -= 1;
            self.newest = LossSum::default();
        }
    }

    fn settle(&mut self) {
        if std::mem::take(&mut self.is_step) {
            self.losses.append(std::mem::take(&mut self.newest));
        }
    }

    /// Records the loss of a micro-batch that [`Ddp::no_sync`](bonfire_train::Ddp::no_sync) has returned. Its time is
    /// part of the next step's.
    pub fn micro_step<T>(&mut self, done: &MicroStep<T>) {
        self.settle();
        self.newest.add(&done.loss);
    }

    /// Shows and writes the figures since the last call, and returns them; `None` if there was no step since. Every
    /// rank must call it. It waits for the device.
    ///
    /// # Errors
    /// [`ReportError::Collective`]; [`ReportError::Train`] on the rank whose loss it is and
    /// [`ReportError::Unwritable`] on rank 0, whereupon the group ends.
    #[track_caller]
    pub fn figures(&mut self, learning_rate: Option<f64>) -> Result<Option<Figures>, ReportError> {
        let steps = self.steps - self.steps_shown;
        if steps == 0 {
            return Ok(None);
        }
        self.settle();
        self.book_other();
        let interval = self.times.since(&self.times_shown);
        (self.times_shown, self.steps_shown) = (self.times, self.steps);
        let losses = self.world.group().or_abort(self.losses.take())?;
        let all = self.all_ranks(interval, losses)?;

        let (sum, weight) =
            all.iter().fold((0.0, 0.0), |(sum, weight), (_, [s, w])| (sum + s, weight + w));
        let splits = all.iter().map(|(split, _)| split);
        let longest = splits.clone().map(TimeSplit::training).max();
        let exposed: Duration = splits.map(|split| split.exposed_communication).sum();
        let flops = self.config.flops;
        let samples_per_second = self.rate(steps, longest.unwrap_or_default());
        let of_one = samples_per_second / all.len() as f64;
        let figures = Figures {
            step: self.steps,
            loss: sum / weight,
            samples_per_second,
            unit: self.config.unit,
            ranks: all.len(),
            model_flops_utilisation: flops.and_then(|flops| flops.utilisation(of_one)),
            exposed_communication: exposed.div_f64(steps as f64 * all.len() as f64),
            learning_rate,
        };
        // A pipe that nobody reads holds rank 0 here, and the others report what it does.
        self.world.group().phase("writing its output");
        self.progress.figures(&figures);
        self.world.group().phase("after writing its output");
        self.write(&figures.values())?;
        Ok(Some(figures))
    }

    /// Records a value, measured after the steps so far, that is the same on all ranks, such as a validation loss or
    /// an accuracy, and shows it. `tag` is its name in all files.
    ///
    /// # Errors
    /// [`ReportError::Unwritable`] on rank 0, whereupon the group ends.
    pub fn value(&mut self, tag: &str, value: f64) -> Result<(), ReportError> {
        let name = tag.replace('_', " ");
        let line = format!("step {:>5}: {name} {value:.4}", self.steps);
        self.progress.value(&line);
        self.write(&[(tag, value)])
    }

    /// Shows the progress of a pass over batches, such as an evaluation, where the journal shows its own.
    pub fn batches(&self, name: &'static str, batches: usize) -> BatchProgress {
        BatchProgress::new(&self.world, name, batches).beside(&self.progress)
    }

    /// Shows a line on rank 0, above the progress.
    pub fn note(&self, line: &str) {
        self.progress.note(line);
    }

    /// Stops the clock and gathers the records of all ranks. Every rank must call it.
    ///
    /// # Errors
    /// [`ReportError::Collective`].
    #[track_caller]
    pub fn close(mut self) -> Result<Report, ReportError> {
        self.progress.clear();
        let total = self.book_other();
        let all = self.all_ranks(self.times, [0.0, 0.0])?;
        // Nothing where the system does not say it.
        let peak = Resident::of_this_process().map_or(0, |resident| resident.peak_bytes);
        let peaks = self.world.group().all_gather(&[peak])?;
        let ranks: Vec<TimeSplit> = all.into_iter().map(|(split, _)| split).collect();
        let longest = ranks.iter().map(TimeSplit::training).max();
        let steps_here = self.steps - self.config.steps_done;
        let samples_per_second = self.rate(steps_here, longest.unwrap_or_default());
        Ok(Report {
            title: self.config.title,
            facts: Vec::new(),
            host: self.host,
            configuration: Vec::new(),
            folder: self.folder,
            world_size: ranks.len(),
            steps: self.steps,
            samples_per_step: self.config.samples_per_step,
            unit: self.config.unit.to_owned(),
            samples_per_second,
            flops: self.config.flops,
            total,
            memory: MemoryUse {
                peaks: peaks.into_iter().filter(|peak| *peak > 0).collect(),
                planned: None,
            },
            straggler: SlowRank::among(&ranks),
            ranks,
            curves: self.curves,
        })
    }

    /// Records the rest of the time since the start as other, and returns all of it.
    fn book_other(&mut self) -> Duration {
        let total = self.started.elapsed();
        self.times.other = Duration::ZERO;
        let booked = self.times.parts().into_iter().map(|(_, part)| part).sum();
        self.times.other = total.saturating_sub(booked);
        total
    }

    #[track_caller]
    fn all_ranks(
        &self,
        own: TimeSplit,
        losses: [f64; 2],
    ) -> Result<Vec<(TimeSplit, [f64; 2])>, ReportError> {
        const PARTS: usize = TimeSplit::PARTS;
        let mut account = own.to_seconds().to_vec();
        account.extend(losses);
        let all = self.world.group().all_gather(&account)?;
        let one = |account: &[f64]| {
            let split = TimeSplit::from_seconds(std::array::from_fn(|part| account[part]));
            (split, [account[PARTS], account[PARTS + 1]])
        };
        Ok(all.chunks_exact(PARTS + 2).map(one).collect())
    }

    /// Samples per second of `steps` steps; zero if no time was measured.
    fn rate(&self, steps: u64, time: Duration) -> f64 {
        match time.as_secs_f64() {
            seconds if seconds > 0.0 => {
                self.config.samples_per_step as f64 * steps as f64 / seconds
            }
            _ => 0.0,
        }
    }

    /// Adds to the curves, and on rank 0 to the files.
    fn write(&mut self, values: &[(&str, f64)]) -> Result<(), ReportError> {
        let step = self.steps;
        for &(tag, value) in values {
            let points = Curve::points_of(&mut self.curves, tag);
            points.push(Point { step, value });
        }
        let written = self.files.as_mut().map(|files| files.write(step, values));
        self.world.group().or_abort(written.transpose())?;
        Ok(())
    }
}

impl Figures {
    fn values(&self) -> Vec<(&'static str, f64)> {
        let exposed = self.exposed_communication.as_secs_f64();
        let mut values = vec![
            ("loss", self.loss),
            ("throughput", self.samples_per_second),
            ("exposed_communication_seconds", exposed),
        ];
        values.extend(self.learning_rate.map(|rate| ("learning_rate", rate)));
        values
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exposed_ms = self.exposed_communication.as_secs_f64() * 1e3;
        let (loss, rate, unit) = (self.loss, self.samples_per_second, self.unit);
        write!(f, "loss {loss:.4}  {rate:.0} {unit}/s")?;
        if self.ranks > 1 {
            write!(f, " ({:.0} per rank)", rate / self.ranks as f64)?;
        }
        if let Some(part) = self.model_flops_utilisation {
            write!(f, "  MFU {:.1} %", 100.0 * part)?;
        }
        write!(f, "  exposed communication {exposed_ms:.2} ms")
    }
}

impl LossSum {
    fn add(&mut self, loss: &Loss) {
        let weight = loss.count();
        // The loss of a batch without samples is often NaN, and counts nothing.
        if weight == 0 {
            return;
        }
        let loss = loss.tensor();
        // In f16 the sum of a few thousand samples is infinite.
        let loss = match loss.dtype() {
            DType::F16 | DType::BF16 => loss.cast(DType::F32),
            _ => loss,
        };
        self.append(Self { sum: Some(loss.mul_scalar(weight as f64)), weight });
    }

    fn append(&mut self, other: Self) {
        self.weight += other.weight;
        self.sum = match (self.sum.take(), other.sum) {
            (Some(sum), Some(other)) => Some(sum + other),
            (sum, other) => sum.or(other),
        };
    }

    /// Takes the sum and its weight, and starts the next.
    fn take(&mut self) -> Result<[f64; 2], ReportError> {
        let Self { sum, weight } = std::mem::take(self);
        let sum = sum.map(|sum| Loss::from(sum).value()).transpose()?;
        Ok([sum.unwrap_or(0.0), weight as f64])
    }
}

#[cfg(test)]
pub(crate) mod tests;
