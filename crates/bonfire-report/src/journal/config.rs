//! The configuration of a journal: title, figures and places.

use std::path::PathBuf;

use super::RunFolder;
use crate::ModelFlops;

/// The options of a [`Journal`](super::Journal).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JournalConfig {
    /// The subject of the training: the headline of the report.
    pub title: String,
    /// Steps of the complete training, for the progress bar.
    pub steps: u64,
    /// Samples in a step on all ranks together.
    pub samples_per_step: usize,
    /// The unit of samples, in the plural: `images`, `tokens`.
    pub unit: &'static str,
    /// The model's operations for a sample, if they are known.
    pub flops: Option<ModelFlops>,
    /// Steps that an earlier run has done; 0 for a run from its beginning.
    pub steps_done: u64,
    /// The form in which rank 0 shows progress.
    pub display: JournalDisplay,
    /// The folder in which rank 0 writes `log.jsonl` (a line of JSON per call of
    /// [`Journal::figures`](super::Journal::figures) or [`Journal::value`](super::Journal::value)) and TensorBoard's
    /// event files; none are written if `None`. They are made for the first values. A run from its beginning starts a
    /// new log, one that continues appends to the existing one.
    pub folder: Option<RunFolder>,
}

impl Default for JournalConfig {
    /// A training of no steps with one sample each, shown and not written.
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
    /// Configures a training of `steps` steps, shown under `title`.
    pub fn new(title: impl Into<String>, steps: u64) -> Self {
        Self { title: title.into(), steps, ..Self::default() }
    }

    /// Sets the samples of a step on all ranks together, and their unit, in the plural.
    #[must_use]
    pub fn with_samples_per_step(mut self, samples: usize, unit: &'static str) -> Self {
        (self.samples_per_step, self.unit) = (samples, unit);
        self
    }

    /// Sets the model's operations for a sample. The report then has FLOP/s per rank and, where the peak is known,
    /// model FLOPs utilisation; the line of progress has the latter.
    #[must_use]
    pub fn with_flops(mut self, flops: ModelFlops) -> Self {
        self.flops = Some(flops);
        self
    }

    /// Sets the steps that an earlier run has done.
    #[must_use]
    pub fn with_steps_done(mut self, steps: u64) -> Self {
        self.steps_done = steps;
        self
    }

    /// Sets the form in which rank 0 shows progress.
    #[must_use]
    pub fn with_display(mut self, display: JournalDisplay) -> Self {
        self.display = display;
        self
    }

    /// Sets the only folder in which rank 0 writes. Files of an earlier run are moved to `earlier-1` in it, or the
    /// next free number, when a run from its beginning writes its first values.
    #[must_use]
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(RunFolder::Given(folder.into()));
        self
    }

    /// Makes rank 0 write in a new folder below `parent`, named by the time in UTC and `name`: `20261124-122530-name`.
    /// To resume a run, pass [`Journal::folder`](super::Journal::folder) of the first to `folder`.
    #[must_use]
    pub fn with_new_folder(mut self, parent: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        self.folder = Some(RunFolder::New { parent: parent.into(), name: name.into() });
        self
    }
}

/// The form in which rank 0 shows a running training.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JournalDisplay {
    /// One line that stays in its place, with a bar, on a terminal; a line per figures elsewhere.
    #[default]
    Progress,
    /// Nothing but notes: for programs with their own output.
    Notes,
}
