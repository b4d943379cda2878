//! What rank 0 shows while training: a bar on a terminal, a line every so often elsewhere.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use bonfire::LauncherOutput;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Cells of the bar that a launcher shows for us.
const BAR_CELLS: usize = 24;

/// Shows how far a training is; the other ranks hold a silent one.
#[derive(Debug)]
pub enum Progress {
    /// A bar on this process's own terminal, with the latest figures beside it.
    Bar(ProgressBar),
    /// The same through a launcher, which keeps one line in place for us.
    StatusLine {
        /// Steps of the whole training.
        steps: usize,
    },
    /// One line at a time, for logs and pipes.
    Lines {
        /// Steps of the whole training.
        steps: usize,
    },
    /// Nothing: only rank 0 draws.
    Silent,
}

/// The figures since the last time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Steps done.
    pub step: usize,
    /// Training loss, the mean over ranks.
    pub loss: f64,
    /// Characters of all ranks together.
    pub tokens_per_second: f64,
    /// Communication that backward did not hide, for one step.
    pub exposed_communication: Duration,
}

impl Progress {
    /// For the rank that draws: whatever its output can show.
    pub fn new(steps: usize) -> Self {
        match LauncherOutput::detect() {
            LauncherOutput::StatusLine => Self::StatusLine { steps },
            LauncherOutput::Direct if stderr().is_terminal() => Self::bar(steps),
            LauncherOutput::Direct | LauncherOutput::Lines => Self::Lines { steps },
        }
    }

    fn bar(steps: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:24.cyan} {pos:>5}/{len} {elapsed} {msg}")
            .expect("the template is a constant with known keys")
            .progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        Self::Bar(bar.with_style(style))
    }

    /// After every step: moves the bar.
    pub fn advance(&self) {
        if let Self::Bar(bar) = self {
            bar.inc(1);
        }
    }

    /// New figures.
    pub fn figures(&self, figures: Figures) {
        let step = figures.step;
        match self {
            Self::Bar(bar) => bar.set_message(figures.to_string()),
            Self::StatusLine { steps } => {
                // The last line stays. Each in one piece, or the launcher would show the pieces.
                let end = if step < *steps { '\r' } else { '\n' };
                let line = format!("{} {step:>5}/{steps} {figures}{end}", cells(step, *steps));
                eprint!("{line}");
            }
            Self::Lines { steps } => println!("step {step:>5}/{steps}  {figures}"),
            Self::Silent => {}
        }
    }

    /// A line that stays: evaluations and the like.
    pub fn note(&self, line: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| println!("{line}")),
            Self::StatusLine { .. } | Self::Lines { .. } => println!("{line}"),
            Self::Silent => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exposed_ms = self.exposed_communication.as_secs_f64() * 1e3;
        let Self {
            loss,
            tokens_per_second,
            ..
        } = self;
        write!(f, "loss {loss:.4}  {tokens_per_second:.0} tokens/s  ")?;
        write!(f, "exposed communication {exposed_ms:.2} ms")
    }
}

/// A bar as text.
fn cells(step: usize, steps: usize) -> String {
    let done = BAR_CELLS * step.min(steps) / steps.max(1);
    format!("{}{}", "━".repeat(done), "─".repeat(BAR_CELLS - done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_carry_their_units() {
        let figures = Figures {
            step: 20,
            loss: 2.51239,
            tokens_per_second: 12_345.6,
            exposed_communication: Duration::from_micros(1250),
        };
        let text = "loss 2.5124  12346 tokens/s  exposed communication 1.25 ms";
        assert_eq!(figures.to_string(), text);
    }

    #[test]
    fn the_bar_fills_with_the_steps() {
        assert_eq!(cells(0, 10), "─".repeat(BAR_CELLS));
        assert_eq!(cells(5, 10), "━".repeat(12) + &"─".repeat(12));
        assert_eq!(cells(10, 10), "━".repeat(BAR_CELLS));
    }
}
