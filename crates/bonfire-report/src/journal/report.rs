//! What a training came to: printed at the end and kept as text, JSON and a page with curves.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use bonfire_plan::Bytes;
use serde::Serialize;

use super::html;
use super::time::{SlowRank, TimeSplit, seconds};
use crate::ReportError;
use crate::error::unwritable;

/// A value that was measured after some number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Steps done.
    pub step: usize,
    /// The value; in JSON null if it is infinite or no number.
    pub value: f64,
}

/// All values of one name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// The name, such as `loss`.
    pub tag: String,
    /// In the order in which they came.
    pub points: Vec<Point>,
}

/// What ranks had in memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryUse {
    /// What the process of each rank had at the most, in rank order, as the operating system counts it: memory that it
    /// shares with others counts for each of them. Empty where the system does not say it. Ranks that are threads are
    /// one process.
    #[serde(rename = "peak_bytes")]
    pub peaks: Vec<u64>,
    /// What it was to be for each, if there was a plan.
    #[serde(rename = "planned_bytes")]
    pub planned: Option<u64>,
}

/// A finished training, as all its ranks saw it: the same on every one of them but for rounding of
/// the total.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What was trained.
    pub title: String,
    /// What the program adds: names and values, in its order.
    pub facts: Vec<(String, String)>,
    /// Ranks that trained together.
    pub world_size: usize,
    /// Steps done, those before a resumption included.
    pub steps: usize,
    /// Samples in a step on all ranks together.
    pub samples_per_step: usize,
    /// What a sample is, in the plural.
    pub unit: String,
    /// Samples that all ranks trained on, per second of training: evaluation and checkpoints are not
    /// counted.
    pub samples_per_second: f64,
    /// From the journal's beginning to its end, in seconds.
    #[serde(serialize_with = "seconds", rename = "total_seconds")]
    pub total: Duration,
    /// What the ranks had in memory.
    pub memory: MemoryUse,
    /// Where the time went, by rank.
    pub ranks: Vec<TimeSplit>,
    /// The rank that the others waited for, if one is well behind the median.
    pub straggler: Option<SlowRank>,
    /// Everything that was measured.
    pub curves: Vec<Curve>,
}

impl MemoryUse {
    /// The most that any rank had, and how that compares with the plan; nothing where it is not known.
    fn line(&self) -> Option<String> {
        let peak = *self.peaks.iter().max()?;
        let measured = format!("{} at the most", Bytes::new(peak));
        let Some(planned) = self.planned else {
            return Some(measured);
        };
        let percent = 100.0 * (planned as f64 / peak as f64 - 1.0);
        let planned = Bytes::new(planned);
        Some(format!("{measured}; planned {planned} ({percent:+.1} %)"))
    }
}

impl Report {
    /// Adds a line about this training, before those that every report has.
    #[must_use]
    pub fn with_fact(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.facts.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds what the process of each rank was to have in memory at the most, as
    /// [`RankMemory::resident`](bonfire_plan::memory::RankMemory::resident) has it.
    #[must_use]
    pub fn with_memory_planned(mut self, bytes: Bytes) -> Self {
        self.memory.planned = Some(bytes.get());
        self
    }

    /// The points of one name; none if there never were any.
    pub fn curve(&self, tag: &str) -> &[Point] {
        let curve = self.curves.iter().find(|curve| curve.tag == tag);
        curve.map_or(&[], |curve| &curve.points)
    }

    /// Writes `report.txt`, `report.json` and `report.html` into `folder`, which is made if it is not
    /// there. For one rank: all have the same report.
    ///
    /// # Errors
    /// [`ReportError::Unwritable`].
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), ReportError> {
        let folder = folder.as_ref();
        let write = |name: &str, content: &str| {
            let path = folder.join(name);
            fs::write(&path, content).map_err(|source| unwritable(&path, source))
        };
        fs::create_dir_all(folder).map_err(|source| unwritable(folder, source))?;
        let json = serde_json::to_string_pretty(self).expect("a report has text for keys");
        write("report.txt", &self.to_string())?;
        write("report.json", &json)?;
        write("report.html", &html::page(self))
    }

    /// Names and values of everything that is one.
    pub(super) fn rows(&self) -> Vec<(String, String)> {
        let row = |name: &str, value: String| (name.to_owned(), value);
        let mut rows = self.facts.clone();
        rows.push(row("ranks", self.world_size.to_string()));
        rows.push(row(
            "global batch",
            format!("{} {}", self.samples_per_step, self.unit),
        ));
        rows.push(row("steps", self.steps.to_string()));
        for Curve { tag, points } in &self.curves {
            if let Some(last) = points.last() {
                let value = format!("{:.4} after step {}", last.value, last.step);
                rows.push((tag.replace('_', " "), value));
            }
        }
        let rate = format!("{:.0}", self.samples_per_second);
        rows.push((format!("{} per second", self.unit), rate));
        rows.push(row("time", format!("{:.1} s", self.total.as_secs_f64())));
        rows.extend(self.memory.line().map(|line| row("memory", line)));
        rows
    }

    /// Who made the others wait, in words.
    pub(super) fn straggler_line(&self) -> Option<String> {
        let straggler = self.straggler?;
        let lost_ms = straggler.lost().as_secs_f64() * 1e3 / self.steps.max(1) as f64;
        Some(format!(
            "rank {} is the straggler: its own work took {:.1} s, that of the rank in the middle \
             {:.1} s, so the others waited {lost_ms:.1} ms in every step",
            straggler.rank,
            straggler.work.as_secs_f64(),
            straggler.median.as_secs_f64()
        ))
    }
}

impl fmt::Display for Report {
    /// Names and values in two columns, then the parts of the time: the mean over the ranks, with the
    /// least and the most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{name:<26} {value}")?;
        }
        let whole = self.total.as_secs_f64();
        for (place, (name, _)) in TimeSplit::default().parts().into_iter().enumerate() {
            let seconds = || self.ranks.iter().map(|split| split.to_seconds()[place]);
            let mean = seconds().sum::<f64>() / self.ranks.len().max(1) as f64;
            let percent = if whole > 0.0 {
                100.0 * mean / whole
            } else {
                0.0
            };
            write!(f, "  {name:<24} {mean:6.1} s  {percent:5.1} %")?;
            if self.ranks.len() > 1 {
                let least = seconds().fold(f64::INFINITY, f64::min);
                let most = seconds().fold(0.0, f64::max);
                write!(f, "   ranks {least:.1} to {most:.1} s")?;
            }
            writeln!(f)?;
        }
        match self.straggler_line() {
            Some(line) => writeln!(f, "{line}"),
            None => Ok(()),
        }
    }
}
