//! What a journal is about, what it shows and where it writes.

use std::path::PathBuf;

use bonfire_page::ModelFlops;

use super::RunFolder;

/// What a journal is about.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JournalConfig {
    /// What is trained: the headline of the report.
    pub title: String,
    /// Steps of the whole training, for the progress bar.
    pub steps: u64,
    /// Samples in a step on all ranks together.
    pub samples_per_step: usize,
    /// What a sample is, in the plural: `images`, `tokens`.
    pub unit: &'static str,
    /// What the model computes for a sample, if it is known.
    pub flops: Option<ModelFlops>,
    /// Steps that an earlier run has done; 0 for a run from its beginning.
    pub steps_done: u64,
    /// Whether rank 0 shows how far the training is.
    pub display: JournalDisplay,
    /// Where rank 0 writes `log.jsonl` (a line of JSON per call of [`Journal::figures`](super::Journal::figures) or
    /// [`Journal::value`](super::Journal::value)) and TensorBoard's event files; nowhere if `None`.
    /// They are made for the first values. A run from its beginning starts a new log, one that goes on continues the one that is
    /// there.
    pub folder: Option<RunFolder>,
}

impl Default for JournalConfig {
    /// A training of one sample in each of no steps, shown and not written.
    fn default() -> Self {
        Self {
            title: "training".to_owned(),
            steps: 0,
            samples_per_step: 1,
            unit: "samples",
            flops: None,
            steps_done: 0,
            display: JournalDisplay::default(),
            folder: None,
        }
    }
}

impl JournalConfig {
    /// For a training of `steps` steps, shown under `title`.
    pub fn new(title: impl Into<String>, steps: u64) -> Self {
        Self {
            title: title.into(),
            steps,
            ..Self::default()
        }
    }

    /// All ranks see so many samples together in a step; `unit` is what a sample is, in the plural.
    #[must_use]
    pub fn with_samples_per_step(mut self, samples: usize, unit: &'static str) -> Self {
        (self.samples_per_step, self.unit) = (samples, unit);
        self
    }

    /// The model computes so much for a sample. The report then has FLOP/s per rank and, where the peak is known,
    /// model FLOPs utilisation; the line of progress has the latter.
    #[must_use]
    pub fn with_flops(mut self, flops: ModelFlops) -> Self {
        self.flops = Some(flops);
        self
    }

    /// An earlier run has done so many steps.
    #[must_use]
    pub fn with_steps_done(mut self, steps: u64) -> Self {
        self.steps_done = steps;
        self
    }

    /// What rank 0 shows.
    #[must_use]
    pub fn with_display(mut self, display: JournalDisplay) -> Self {
        self.display = display;
        self
    }

    /// Where rank 0 writes: in this folder, and nowhere else. What an earlier run has written there is moved to
    /// `earlier-1` in it, or the next free number, when a run from its beginning writes its first values.
    #[must_use]
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(RunFolder::Told(folder.into()));
        self
    }

    /// Rank 0 writes in a new folder below `parent`, named by the time in UTC and `name`:
    /// `20261124-122530-name`. A run that is to be resumed is told
    /// [`Journal::folder`](super::Journal::folder) of the first.
    #[must_use]
    pub fn with_new_folder(mut self, parent: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        self.folder = Some(RunFolder::New {
            parent: parent.into(),
            name: name.into(),
        });
        self
    }
}

/// What rank 0 shows of a training while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JournalDisplay {
    /// One line that stays in its place, with a bar, on a terminal; a line per figures elsewhere.
    #[default]
    Progress,
    /// Nothing but notes: for programs that have lines of their own.
    Notes,
}
