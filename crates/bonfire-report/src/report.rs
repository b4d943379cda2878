//! The result of a training: printed at the end and kept as text, JSON and a page with curves.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bonfire_plan::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ModelFlops;
use crate::quantity::{self, Quantity};
use crate::time::{SlowRank, TimeSplit, seconds};

/// A value that was measured after some number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The number of steps done.
    pub step: u64,
    /// The measured value; in JSON null if it is infinite or NaN.
    #[serde(deserialize_with = "or_nan")]
    pub value: f64,
}

/// All values of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The name, such as `loss`.
    pub tag: String,
    /// The points, in the order of recording.
    pub points: Vec<Point>,
}

/// The memory of ranks, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// The peak of each rank's process, in rank order, as the operating system counts it: memory that it shares with
    /// others counts for each of them. Empty where the system does not report it. Ranks that are threads are one
    /// process.
    #[serde(rename = "peak_bytes")]
    pub peaks: Vec<u64>,
    /// The planned peak of each rank, if there was a plan.
    #[serde(rename = "planned_bytes")]
    pub planned: Option<u64>,
}

/// A finished training, with the values of all ranks: the same on every one of them but for rounding of the total.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The heading of the report: the journal's title, or the folder of a run without a report.
    pub title: String,
    /// Facts that the program adds: names and values, in its order.
    pub facts: Vec<(String, String)>,
    /// The machine of rank 0, and the command: names and values.
    pub host: Vec<(String, String)>,
    /// Every value of the configuration, by its name, if the program has one.
    pub configuration: Vec<(String, String)>,
    /// The folder of the run, if it has one: where the journal wrote, for `write`.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
    /// The number of ranks at the end of the run.
    pub world_size: usize,
    /// Steps done, those before a resumption included.
    pub steps: u64,
    /// Samples in a step on all ranks together.
    pub samples_per_step: usize,
    /// The unit of samples, in the plural: `images`, `tokens`.
    pub unit: String,
    /// Samples that all ranks trained on, per second of training: evaluation and checkpoints are not counted.
    pub samples_per_second: f64,
    /// The operations of the model, if the program has set them.
    pub flops: Option<ModelFlops>,
    /// From the journal's beginning to its end, in seconds.
    #[serde(with = "seconds", rename = "total_seconds")]
    pub total: Duration,
    /// The peak memory of all ranks, measured and planned.
    pub memory: MemoryUse,
    /// The time of each rank, by activity.
    pub ranks: Vec<TimeSplit>,
    /// The rank that the others waited for, if one is well behind the median.
    pub straggler: Option<SlowRank>,
    /// The recorded values, a curve for each name.
    pub curves: Vec<Curve>,
}

impl Curve {
    pub(crate) fn points_of<'a>(curves: &'a mut Vec<Self>, tag: &str) -> &'a mut Vec<Point> {
        let known = curves.iter().position(|curve| curve.tag == tag);
        let place = known.unwrap_or_else(|| {
            curves.push(Self { tag: tag.to_owned(), points: Vec::new() });
            curves.len() - 1
        });
        &mut curves[place].points
    }
}

impl MemoryUse {
    /// The peak of all ranks, and its ratio to the plan; `None` if it is unknown.
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

    /// Adds the planned peak memory of each rank's process, as
    /// [`RankMemory::resident`](bonfire_plan::memory::RankMemory::resident) has it.
    #[must_use]
    pub fn with_memory_planned(mut self, bytes: Bytes) -> Self {
        self.memory.planned = Some(bytes.get());
        self
    }

    /// Returns the points of one name; empty without any.
    pub fn curve(&self, tag: &str) -> &[Point] {
        let curve = self.curves.iter().find(|curve| curve.tag == tag);
        curve.map_or(&[], |curve| &curve.points)
    }

    /// Adds the program's configuration: names and values.
    #[must_use]
    pub fn with_configuration(
        mut self,
        values: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        self.configuration = values.into_iter().collect();
        self
    }

    pub(crate) fn ordered_curves(&self) -> Vec<&Curve> {
        let mut curves: Vec<&Curve> = self.curves.iter().collect();
        curves.sort_by_key(|curve| quantity::place(&curve.tag));
        curves
    }

    pub(crate) fn run_rows(&self) -> Vec<(String, String)> {
        let mut rows = self.facts.clone();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        let batch = format!("{} {}", self.samples_per_step, self.unit);
        row("ranks", self.world_size.to_string());
        row("global batch", batch);
        row("steps", self.steps.to_string());
        rows
    }

    pub(crate) fn result_rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        for Curve { tag, points } in self.ordered_curves() {
            // The value of the complete run comes below.
            if tag == "throughput" {
                continue;
            }
            if let Some(last) = points.last() {
                let quantity = Quantity::of(tag, &self.unit);
                let value = format!("{} after step {}", quantity.show(last.value), last.step);
                rows.push((quantity.title.to_lowercase(), value));
            }
        }
        let rate = self.samples_per_second;
        rows.push((format!("{} per second", self.unit), format!("{rate:.0}")));
        let of_one = rate / self.world_size.max(1) as f64;
        if self.world_size > 1 {
            let name = format!("{} per second and rank", self.unit);
            rows.push((name, format!("{of_one:.0}")));
        }
        rows.extend(self.flops.iter().flat_map(|flops| flops.rows(of_one)));
        let total = format!("{:.1} s", self.total.as_secs_f64());
        rows.push(("time".to_owned(), total));
        let memory = self.memory.line();
        rows.extend(memory.map(|line| ("memory".to_owned(), line)));
        rows
    }

    pub(crate) fn straggler_line(&self) -> Option<String> {
        let straggler = self.straggler?;
        let lost_ms = straggler.lost().as_secs_f64() * 1e3 / self.steps.max(1) as f64;
        let [work, median] = [straggler.work, straggler.median].map(|time| time.as_secs_f64());
        Some(format!(
            "rank {} is the straggler: its own work took {work:.1} s, that of the rank in the middle \
             {median:.1} s, so the others waited {lost_ms:.1} ms in every step",
            straggler.rank
        ))
    }
}

impl fmt::Display for Report {
    /// Names and values in two columns, then the parts of the time: the mean over the ranks, with the
    /// least and the most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.run_rows().into_iter().chain(self.result_rows()) {
            writeln!(f, "{name:<26} {value}")?;
        }
        let whole = self.total.as_secs_f64();
        for (place, (name, _)) in TimeSplit::default().parts().into_iter().enumerate() {
            let seconds = || self.ranks.iter().map(|split| split.to_seconds()[place]);
            let mean = seconds().sum::<f64>() / self.ranks.len().max(1) as f64;
            let percent = match whole {
                0.0 => 0.0,
                whole => 100.0 * mean / whole,
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

fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
