//! What rank 0 shows while training: a line in its place on a terminal, a line every so often elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use bonfire_launch::LauncherOutput;

use super::Figures;

/// Cells of the bar.
const BAR_CELLS: usize = 24;

/// Shows how far a training is; the other ranks hold a silent one.
#[derive(Debug)]
pub(super) enum Progress {
    /// The figures, with the time that is left.
    Shown(Place, Bar),
    /// Notes only: the program has lines of its own.
    Notes,
    /// Nothing: only rank 0 draws.
    Silent,
}

/// Who keeps the line in its place, if anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// This process, on its own terminal.
    Terminal,
    /// The launcher, which shows what ends in a carriage return below all else.
    Launcher,
    /// Nobody: it is a log or a pipe, in which every line stays.
    Log,
}

/// How far a training is, and since when.
#[derive(Debug)]
pub(super) struct Bar {
    started: Instant,
    steps_done: u64,
    steps: u64,
}

/// Forgets what is in the line from the cursor on.
const CLEAR: &str = "\x1b[K";
/// What is too long for the terminal is cut off, and goes on after the line.
const CUT: [&str; 2] = ["\x1b[?7l", "\x1b[?7h"];

impl Progress {
    /// For the rank that draws: whatever its output can show.
    pub(super) fn new(steps_done: u64, steps: u64) -> Self {
        let started = Instant::now();
        let bar = Bar {
            started,
            steps_done,
            steps,
        };
        let place = match LauncherOutput::detect() {
            LauncherOutput::StatusLine => Place::Launcher,
            LauncherOutput::Direct if stderr().is_terminal() => Place::Terminal,
            LauncherOutput::Direct | LauncherOutput::Lines => Place::Log,
        };
        Self::Shown(place, bar)
    }

    /// New figures.
    pub(super) fn figures(&self, figures: &Figures) {
        let Self::Shown(place, bar) = self else {
            return;
        };
        let line = bar.line(figures, bar.started.elapsed());
        // The last line stays. Each in one piece, or the launcher would show the pieces.
        let end = if figures.step < bar.steps { '\r' } else { '\n' };
        let ([cut, uncut], drawn) = (CUT, bar.drawn(figures.step));
        let text = match place {
            Place::Terminal => format!("{cut}{drawn} {line}{CLEAR}{uncut}{end}"),
            Place::Launcher => format!("{drawn} {line}{end}"),
            Place::Log => return println!("step {line}"),
        };
        eprint!("{text}");
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
            Self::Silent => {}
            _ => {
                self.clear();
                println!("{line}");
            }
        }
    }

    /// Takes the line away; the next figures bring it back.
    pub(super) fn clear(&self) {
        if let Self::Shown(Place::Terminal, _) = self {
            eprint!("{CLEAR}");
        }
    }
}

impl Bar {
    /// As much of the bar as is done.
    fn drawn(&self, step: u64) -> String {
        let done = (BAR_CELLS as u64 * step.min(self.steps) / self.steps.max(1)) as usize;
        "━".repeat(done) + &"─".repeat(BAR_CELLS - done)
    }

    /// The figures and, before the last step, the time that is left at the pace so far.
    fn line(&self, figures: &Figures, elapsed: Duration) -> String {
        let (step, steps) = (figures.step, self.steps);
        let left = match (step.checked_sub(self.steps_done), steps.checked_sub(step)) {
            (Some(here @ 1..), Some(left @ 1..)) => {
                let seconds = elapsed.mul_f64(left as f64 / here as f64).as_secs();
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                format!("  {hours}:{minutes:02}:{:02} left", seconds % 60)
            }
            _ => String::new(),
        };
        format!("{step:>5}/{steps}{left}  {figures}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(steps_done: u64, step: u64) -> String {
        let figures = Figures {
            step,
            loss: 1.0,
            samples_per_second: 2.0,
            unit: "tokens",
            ranks: 1,
            model_flops_utilisation: None,
            exposed_communication: Duration::ZERO,
            learning_rate: None,
        };
        let bar = Bar {
            started: Instant::now(),
            steps_done,
            steps: 10,
        };
        let line = bar.line(&figures, Duration::from_secs(60));
        format!("{} {line}", bar.drawn(step))
    }

    #[test]
    fn the_bar_fills_with_the_steps_and_says_what_is_left() {
        let half = "━".repeat(12) + &"─".repeat(12);
        assert!(line(0, 5).starts_with(&format!("{half}     5/10  0:01:00 left  loss 1")));
        // Only one of the five was done in this minute.
        assert!(line(4, 5).starts_with(&format!("{half}     5/10  0:05:00 left")));
        let whole = "━".repeat(24);
        assert!(line(0, 10).starts_with(&format!("{whole}    10/10  loss")));
        let text = "exposed communication 0.00 ms";
        assert!(line(0, 10).ends_with(text) && line(0, 5).ends_with(text));
        assert!(line(10, 11).starts_with(&format!("{whole}    11/10  loss")));
    }
}
