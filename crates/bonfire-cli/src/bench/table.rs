//! The table of nccl-tests, printed by rank 0, and the same rows as JSON.

use std::path::Path;
use std::time::Duration;

use bonfire_collective::{DType, ProcessGroup};
use serde::Serialize;

use super::gpu::Gpus;
use super::host::Host;
use super::layout::Form;
use super::measure::{Measurement, Timing};
use crate::operation::Operation;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    pub(super) ranks: u32,
    pub(super) transport: &'static str,
    /// What the command line asks for, where an operation has it.
    pub(super) algorithm_asked: Option<&'static str>,
    pub(super) chunk_bytes: usize,
    pub(super) buffers: &'static str,
    /// What the ranks compute on, if on GPUs.
    pub(super) gpus: Option<Gpus>,
    pub(super) repeats: u32,
    pub(super) iters: usize,
    pub(super) min_time_us: f64,
    pub(super) warmup: usize,
    pub(super) rotate_bytes: usize,
    pub(super) host: Host,
    pub(super) version: &'static str,
}

/// One row as written to the JSON file: everything that is needed to repeat it.
#[derive(Debug, Serialize)]
struct Record {
    operation: &'static str,
    form: &'static str,
    size_bytes: usize,
    count: usize,
    dtype: DType,
    redop: Option<&'static str>,
    root: Option<u32>,
    /// What ran, asked for or chosen by Bonfire; none where there was nothing to do.
    algorithm: Option<&'static str>,
    /// The time of the median operation.
    time_us: f64,
    min_us: f64,
    mean_us: f64,
    samples: usize,
    /// The operations timed as one sample.
    batch: usize,
    /// Of the median, in GB/s, 10^9 bytes.
    algbw: f64,
    /// Of the median, in GB/s, 10^9 bytes.
    busbw: f64,
    wrong: u64,
    #[serde(flatten)]
    setting: Setting,
}

pub(super) struct Report {
    setting: Setting,
    speaks: bool,
    records: Vec<Record>,
}

pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) forms: Vec<(Measurement, Timing)>,
}

impl Report {
    pub(super) fn new(group: &ProcessGroup, setting: Setting) -> Self {
        Self { setting, speaks: group.rank().get() == 0, records: Vec::new() }
    }

    pub(super) fn begin(&self, operation: Operation, forms: &[Form]) -> anyhow::Result<()> {
        let Setting { ranks, transport, buffers, iters, .. } = &self.setting;
        self.print(&format!(
            "# {} of {ranks} ranks over {transport}, {buffers} buffers, {iters} iterations",
            operation.name()
        ))?;
        if let Some(gpus) = &self.setting.gpus {
            self.print(&gpus.to_string())?;
        }
        let mut names = fixed(["size", "count", "type", "redop", "root"]);
        let mut units = fixed(["(B)", "(elements)", "", "", ""]);
        let mut places = fixed(["#", "", "", "", ""]);
        for form in forms {
            names += &times(["time", "mean", "algbw", "busbw", "#wrong", "algorithm"]);
            units += &times(["(us)", "(us)", "(GB/s)", "(GB/s)", "", ""]);
            places += &times(["", "", &form.name().replace('_', "-"), "", "", ""]);
        }
        [places, names, units].iter().try_for_each(|line| self.print(line))
    }

    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let mut line = String::new();
        for (measurement, timing) in row.forms {
            let record = self.record(row.bytes, row.count, measurement, timing);
            if line.is_empty() {
                line = fixed([
                    &record.size_bytes.to_string(),
                    &record.count.to_string(),
                    record.dtype.name(),
                    record.redop.unwrap_or("none"),
                    &record.root.map_or("-1".to_owned(), |root| root.to_string()),
                ]);
            }
            line += &times([
                &format!("{:.2}", record.time_us),
                &format!("{:.2}", record.mean_us),
                &format!("{:.3}", record.algbw),
                &format!("{:.3}", record.busbw),
                &record.wrong.to_string(),
                record.algorithm.unwrap_or("none"),
            ]);
            self.records.push(record);
        }
        self.print(&line)
    }

    fn record(&self, bytes: usize, count: usize, of: Measurement, timing: Timing) -> Record {
        let operation = of.operation;
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        let algbw = bytes as f64 / timing.median.as_secs_f64().max(1e-9) / 1e9;
        Record {
            operation: operation.name(),
            form: of.form.name(),
            size_bytes: bytes,
            count,
            dtype: of.dtype,
            redop: operation.reduces().then(|| of.parameters.redop.name()),
            root: operation.has_root().then(|| of.parameters.root.get()),
            algorithm: timing.algorithm,
            time_us: microseconds(timing.median),
            min_us: microseconds(timing.min),
            mean_us: microseconds(timing.mean),
            samples: timing.samples,
            batch: timing.batch,
            algbw,
            busbw: algbw * operation.bus_factor(self.setting.ranks as usize),
            wrong: timing.wrong,
            setting: self.setting.clone(),
        }
    }

    /// Writes the file, if one is wanted; the number of wrong elements in all rows.
    pub(super) fn finish(self, json: Option<&Path>) -> anyhow::Result<u64> {
        let wrong: u64 = self.records.iter().map(|record| record.wrong).sum();
        let busbw: f64 = self.records.iter().map(|record| record.busbw).sum();
        let busbw = busbw / self.records.len().max(1) as f64;
        let verdict = if wrong == 0 { "OK" } else { "FAILED" };
        self.print(&format!("# Out of bounds values : {wrong} {verdict}"))?;
        self.print(&format!("# Avg bus bandwidth    : {busbw:.3} GB/s"))?;
        if let (Some(path), true) = (json, self.speaks) {
            crate::save_json(path, &self.records)?;
        }
        Ok(wrong)
    }

    fn print(&self, line: &str) -> anyhow::Result<()> {
        if self.speaks {
            crate::print(&format!("{}\n", line.trim_end()))?;
        }
        Ok(())
    }
}

fn fixed([size, count, dtype, redop, root]: [&str; 5]) -> String {
    format!("{size:>12} {count:>12} {dtype:>6} {redop:>7} {root:>5}")
}

fn times([time, mean, algbw, busbw, wrong, algorithm]: [&str; 6]) -> String {
    format!("  {time:>11} {mean:>11} {algbw:>12} {busbw:>8} {wrong:>7} {algorithm:>16}")
}
