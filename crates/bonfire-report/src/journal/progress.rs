//! The progress of rank 0: a line in its place on a terminal, a line at intervals elsewhere.

use std::fmt;
use std::io::{Write as _, stderr, stdout};
use std::time::{Duration, Instant};

use bonfire_launch::{LauncherOutput, draws_on};
use bonfire_train::World;

use super::Figures;

const BAR_CELLS: usize = 24;

/// Shows how far a training is; the other ranks hold a silent one.
#[derive(Debug)]
pub(super) enum Progress {
    /// The figures, with the time that is left.
    Shown(Place, Bar),
    /// Notes only: the program has its own output.
    Notes,
    Silent,
}

/// The process that keeps the line in its place, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Terminal,
    /// The launcher, which shows what ends in a carriage return below all else.
    Launcher,
    /// None: the output is a log or a pipe, in which every line stays.
    Log,
}

#[derive(Debug)]
pub(super) struct Bar {
    started: Instant,
    steps_done: u64,
    steps: u64,
}

/// Clears the line from the cursor on.
const CLEAR: &str = "\x1b[K";
/// Disables line wrapping, so that long lines are cut off, and enables it again.
const CUT: [&str; 2] = ["\x1b[?7l", "\x1b[?7h"];

/// The shortest time between two lines of a [`BatchProgress`] in a log, in which every one stays.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// The shortest time between two lines that replace each other.
const DRAWN_PAUSE: Duration = Duration::from_millis(200);

/// Prints a line. A reader that is gone or a full disk does not end a training, as a panic of `println!` would.
fn print(line: &str) {
    let _ = writeln!(stdout().lock(), "{line}");
}

fn draw(text: fmt::Arguments<'_>) {
    let _ = stderr().lock().write_fmt(text);
}

impl Place {
    fn detect() -> Self {
        match LauncherOutput::detect() {
            LauncherOutput::StatusLine => Self::Launcher,
            LauncherOutput::Direct if draws_on(&stderr()) => Self::Terminal,
            LauncherOutput::Direct | LauncherOutput::Lines => Self::Log,
        }
    }

    /// Shows a line; the last stays. Each is written in one piece, or the launcher would show the pieces.
    fn show(self, drawn: &str, line: &str, is_last: bool) {
        let ([cut, uncut], end) = (CUT, if is_last { '\n' } else { '\r' });
        match self {
            Self::Terminal => draw(format_args!("{cut}{drawn} {line}{CLEAR}{uncut}{end}")),
            Self::Launcher => draw(format_args!("{drawn} {line}{end}")),
            Self::Log => print(line),
        }
    }
}

/// Shows the progress of a pass over batches, such as an evaluation: the batches of rank 0, the time that is left, and
/// the samples of all ranks in a second. On a terminal it is a line that stays in its place; elsewhere a line comes
/// every ten seconds.
#[derive(Debug)]
pub struct BatchProgress {
    /// `None` on the ranks that do not draw.
    shown: Option<(Place, Bar)>,
    name: &'static str,
    ranks: usize,
    batches: u64,
    samples: u64,
    /// The time of the last line, or of the start.
    last: Instant,
    is_drawn: bool,
}

impl BatchProgress {
    /// Starts a pass of `batches` batches of rank 0, under a name for display.
    pub fn new(world: &World, name: &'static str, batches: usize) -> Self {
        let bar = Bar::new(0, batches as u64);
        let shown = world.is_main().then(|| (Place::detect(), bar));
        Self {
            shown,
            name,
            ranks: world.world_size().len(),
            batches: 0,
            samples: 0,
            last: Instant::now(),
            is_drawn: false,
        }
    }

    /// Shows it like the rank's other lines, if at all.
    pub(super) fn beside(self, progress: &Progress) -> Self {
        let is_shown = matches!(progress, Progress::Shown(..));
        Self { shown: self.shown.filter(|_| is_shown), ..self }
    }

    /// Records that one more batch of `samples` samples is done.
    pub fn batch(&mut self, samples: usize) {
        self.batches += 1;
        self.samples += samples as u64;
        let Some((place, bar)) = &self.shown else {
            return;
        };
        let pause = match place {
            Place::Log => LOG_PAUSE,
            Place::Terminal | Place::Launcher => DRAWN_PAUSE,
        };
        let is_last = self.batches >= bar.steps;
        // The end is a line where there was one before.
        if self.last.elapsed() < pause && !(is_last && self.is_drawn) {
            return;
        }
        let line = self.line(bar, bar.started.elapsed());
        place.show(&bar.drawn(self.batches), &line, is_last);
        (self.last, self.is_drawn) = (Instant::now(), true);
    }

    fn line(&self, bar: &Bar, elapsed: Duration) -> String {
        let Self { name, batches, .. } = self;
        let (batch, left) = (bar.steps, bar.left(self.batches, elapsed));
        let rate = self.samples as f64 * self.ranks as f64 / elapsed.as_secs_f64();
        format!("{name} {batches:>5}/{batch}{left}  {rate:.0} samples/s")
    }
}

impl Progress {
    /// Makes the progress of the rank that draws, in the form that its output supports.
    pub(super) fn new(steps_done: u64, steps: u64) -> Self {
        Self::Shown(Place::detect(), Bar::new(steps_done, steps))
    }

    pub(super) fn figures(&self, figures: &Figures) {
        let Self::Shown(place, bar) = self else {
            return;
        };
        let mut line = bar.line(figures, bar.started.elapsed());
        if *place == Place::Log {
            line.insert_str(0, "step ");
        }
        place.show(&bar.drawn(figures.step), &line, figures.step >= bar.steps);
    }

    pub(super) fn value(&self, line: &str) {
        if !matches!(self, Self::Notes) {
            self.note(line);
        }
    }

    pub(super) fn note(&self, line: &str) {
        if !matches!(self, Self::Silent) {
            self.clear();
            print(line);
        }
    }

    /// Clears the line; the next figures show it again.
    pub(super) fn clear(&self) {
        if let Self::Shown(Place::Terminal, _) = self {
            draw(format_args!("{CLEAR}"));
        }
    }
}

impl Bar {
    fn new(steps_done: u64, steps: u64) -> Self {
        Self { started: Instant::now(), steps_done, steps }
    }

    fn drawn(&self, step: u64) -> String {
        let done = (BAR_CELLS as u64 * step.min(self.steps) / self.steps.max(1)) as usize;
        "━".repeat(done) + &"─".repeat(BAR_CELLS - done)
    }

    /// The figures and, before the last step, the time that is left at the pace so far.
    fn line(&self, figures: &Figures, elapsed: Duration) -> String {
        let (step, left) = (figures.step, self.left(figures.step, elapsed));
        format!("{step:>5}/{}{left}  {figures}", self.steps)
    }

    /// The remaining time after `step` steps; empty before the first and after the last.
    fn left(&self, step: u64, elapsed: Duration) -> String {
        let here = step.checked_sub(self.steps_done);
        match (here, self.steps.checked_sub(step)) {
            (Some(here @ 1..), Some(left @ 1..)) => {
                let seconds = elapsed.mul_f64(left as f64 / here as f64).as_secs();
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                format!("  {hours}:{minutes:02}:{:02} left", seconds % 60)
            }
            _ => String::new(),
        }
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
        let bar = Bar { started: Instant::now(), steps_done, steps: 10 };
        let line = bar.line(&figures, Duration::from_secs(60));
        format!("{} {line}", bar.drawn(step))
    }

    #[test]
    fn an_evaluation_says_what_is_left_and_how_fast_it_is() {
        let bar = Bar::new(0, 10);
        let progress = BatchProgress {
            shown: None,
            name: "evaluation",
            ranks: 2,
            batches: 4,
            samples: 32,
            last: Instant::now(),
            is_drawn: false,
        };
        let line = progress.line(&bar, Duration::from_secs(8));
        assert_eq!(line, "evaluation     4/10  0:00:12 left  8 samples/s");
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
