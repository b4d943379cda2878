//! What rank 0 shows while training: a bar on a terminal, a line every so often elsewhere.

use std::io::{IsTerminal, stderr};

use bonfire_launch::LauncherOutput;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Figures;

/// Cells of the bar that a launcher shows for us.
const BAR_CELLS: usize = 24;

/// Shows how far a training is; the other ranks hold a silent one.
#[derive(Debug)]
pub(super) enum Progress {
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
    /// Notes only: the program has lines of its own.
    Notes,
    /// Nothing: only rank 0 draws.
    Silent,
}

impl Progress {
    /// For the rank that draws: whatever its output can show.
    pub(super) fn new(steps: usize) -> Self {
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
    pub(super) fn position(&self, step: usize) {
        if let Self::Bar(bar) = self {
            bar.set_position(step as u64);
        }
    }

    /// New figures.
    pub(super) fn figures(&self, figures: &Figures) {
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
            Self::Notes | Self::Silent => {}
        }
    }

    /// A value that was measured: a line that stays.
    pub(super) fn value(&self, line: &str) {
        match self {
            Self::Notes => {}
            _ => self.note(line),
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, line: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| println!("{line}")),
            Self::StatusLine { .. } | Self::Lines { .. } | Self::Notes => println!("{line}"),
            Self::Silent => {}
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
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
    fn the_bar_fills_with_the_steps() {
        assert_eq!(cells(0, 10), "─".repeat(BAR_CELLS));
        assert_eq!(cells(5, 10), "━".repeat(12) + &"─".repeat(12));
        assert_eq!(cells(10, 10), "━".repeat(BAR_CELLS));
    }
}
