//! Keeps account of a training: where the time goes, the losses, what rank 0 shows of both.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bonfire::{StepTiming, WeightedMean, World};
use burn::tensor::Tensor;

use crate::curve::Point;
use crate::progress::{Figures, Progress};
use crate::report::TimeSplit;

/// An activity that the loop times itself; [`bonfire::Ddp`] times forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Drawing and copying windows.
    Data,
    /// Clipping and the optimizer. A GPU works behind the program's back: what its optimizer takes
    /// beyond the call is found in the next step's forward pass.
    Optimizer,
    /// Validation.
    Evaluation,
}

/// The account of one rank. All ranks keep one and call the same methods, because the losses are
/// means over ranks; only rank 0's shows anything.
#[derive(Debug)]
pub struct Journal {
    world: World,
    progress: Progress,
    /// Characters that all ranks work on in a step.
    tokens_per_step: usize,
    started: Instant,
    times: TimeSplit,
    /// The times at the last figures.
    times_shown: TimeSplit,
    /// Steps since the last figures.
    steps_since: usize,
    /// The sum of this rank's losses since the last figures; read only then, because reading one
    /// waits for the device.
    loss_sum: Option<Tensor<1>>,
    training_loss: Vec<Point>,
    validation_loss: Vec<Point>,
}

/// What a journal knows in the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// The parts of the time.
    pub times: TimeSplit,
    /// From the first entry to the last.
    pub total: Duration,
    /// Mean loss between one line and the next.
    pub training_loss: Vec<Point>,
    /// Loss of every evaluation.
    pub validation_loss: Vec<Point>,
}

impl Journal {
    /// Starts the clock.
    pub fn new(world: &World, steps: usize, tokens_per_step: usize) -> Self {
        let progress = if world.is_main() {
            Progress::new(steps)
        } else {
            Progress::Silent
        };
        Self {
            world: world.clone(),
            progress,
            tokens_per_step,
            started: Instant::now(),
            times: TimeSplit::default(),
            times_shown: TimeSplit::default(),
            steps_since: 0,
            loss_sum: None,
            training_loss: Vec::new(),
            validation_loss: Vec::new(),
        }
    }

    /// Does something and books its time.
    pub fn time<T>(&mut self, activity: Activity, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let part = match activity {
            Activity::Data => &mut self.times.data,
            Activity::Optimizer => &mut self.times.optimizer,
            Activity::Evaluation => &mut self.times.evaluation,
        };
        *part += start.elapsed();
        result
    }

    /// Books a step.
    pub fn step(&mut self, timing: StepTiming, loss: Option<Tensor<1>>) {
        self.times.forward_backward += timing.forward_backward;
        self.times.exposed_communication += timing.exposed_communication;
        self.steps_since += 1;
        self.loss_sum = match (self.loss_sum.take(), loss) {
            (Some(sum), Some(loss)) => Some(sum + loss),
            (sum, loss) => sum.or(loss),
        };
        self.progress.advance();
    }

    /// Shows the figures since the last time; `step` counts the steps done.
    pub fn show(&mut self, step: usize) -> Result<()> {
        let Some(sum) = self.loss_sum.take() else {
            return Ok(());
        };
        let steps = std::mem::take(&mut self.steps_since);
        let mut mean = WeightedMean::new();
        mean.add(sum.into_scalar::<f64>() / steps as f64, steps);
        let loss = mean
            .over_ranks(self.world.group())?
            .context("no rank has a loss")?;
        let exposed = self.times.exposed_communication - self.times_shown.exposed_communication;
        let training = self.times.training() - self.times_shown.training();
        self.times_shown = self.times;
        self.training_loss.push(Point { step, loss });
        self.progress.figures(Figures {
            step,
            loss,
            tokens_per_second: rate(self.tokens_per_step * steps, training),
            exposed_communication: exposed.div_f64(steps as f64),
        });
        Ok(())
    }

    /// Books an evaluation after `step` steps.
    pub fn validation(&mut self, step: usize, loss: f64) {
        self.validation_loss.push(Point { step, loss });
        self.progress
            .note(&format!("step {step:>5}: validation loss {loss:.4}"));
    }

    /// A line on rank 0.
    pub fn note(&self, line: &str) {
        self.progress.note(line);
    }

    /// Stops the clock.
    pub fn close(self) -> Account {
        self.progress.finish();
        Account {
            times: self.times,
            total: self.started.elapsed(),
            training_loss: self.training_loss,
            validation_loss: self.validation_loss,
        }
    }
}

/// Tokens per second; zero if no time was measured.
pub fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        tokens as f64 / seconds
    } else {
        0.0
    }
}
