//! `bonfire simulate --fit`: links that reproduce rows of `bonfire bench --json`.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bonfire_plan::simulate::{FitSample, LinkModel, Mover};
use bonfire_plan::{
    Algorithm, Bytes, DType, Hosts, Partition, Rank, Schedule, ScheduleShape, WorldSize,
};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::link::{self, FittedLink, figures};
use crate::operation::Operation;

/// Which sizes a fit does not see, so that they show how well it predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HoldOut {
    /// None: the link is as close as it can be everywhere
    None,
    /// Every second size, but not the smallest and the largest
    Half,
}

/// How rows are read, and what is done with the links.
#[derive(Clone, Copy, Debug)]
pub(super) struct FitOptions<'a> {
    pub(super) hold_out: HoldOut,
    /// What ran in rows that do not say it.
    pub(super) algorithm: Option<Algorithm>,
    /// The frames of rows that do not say it.
    pub(super) chunk_bytes: usize,
    pub(super) json: Option<&'a Path>,
    pub(super) write_link: Option<&'a Path>,
}

#[derive(Clone, Debug, Deserialize)]
struct Row {
    operation: String,
    transport: String,
    ranks: u32,
    size_bytes: usize,
    dtype: DType,
    time_us: f64,
    #[serde(default)]
    form: Option<String>,
    #[serde(default)]
    algorithm: Option<String>,
    #[serde(default)]
    chunk_bytes: Option<usize>,
    #[serde(default)]
    root: Option<u32>,
    #[serde(default)]
    wrong: u64,
}

/// Rows that one link is fitted to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    transport: String,
    ranks: u32,
    operation: String,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, ranks, transport) = (&self.operation, self.ranks, &self.transport);
        write!(f, "{operation} of {ranks} ranks over {transport}")
    }
}

/// A row beside what was predicted for it; as written to the JSON file.
#[derive(Debug, Serialize)]
struct Prediction {
    operation: &'static str,
    algorithm: &'static str,
    transport: String,
    ranks: u32,
    size_bytes: usize,
    measured_us: f64,
    predicted_us: f64,
    /// Predicted by measured, less one.
    error: f64,
    held_out: bool,
}

struct Measured {
    sample: FitSample,
    algorithm: Algorithm,
    bytes: usize,
}

/// Fits a link to each transport, number of ranks and operation of the files; the report.
pub(super) fn fit(files: &[PathBuf], options: FitOptions<'_>) -> anyhow::Result<String> {
    let mut groups: BTreeMap<Group, Vec<Row>> = BTreeMap::new();
    for path in files {
        let rows = crate::read_json::<Vec<Row>>(path, "has no rows of `bonfire bench --json`")?;
        for row in rows {
            let group = Group {
                transport: row.transport.clone(),
                ranks: row.ranks,
                operation: row.operation.clone(),
            };
            groups.entry(group).or_default().push(row);
        }
    }
    let (mut text, mut links, mut predictions) = (String::new(), Vec::new(), Vec::new());
    for (group, rows) in groups {
        let fitted = fit_group(&group, rows, options).with_context(|| group.to_string())?;
        if let Some((model, rows)) = fitted {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &table(&group, &model, &rows);
            links.push(FittedLink {
                transport: group.transport,
                ranks: group.ranks,
                operation: group.operation,
                model,
            });
            predictions.extend(rows);
        }
    }
    if links.is_empty() {
        bail!("no row of these files moves data between ranks");
    }
    if let Some(path) = options.json {
        crate::save_json(path, &predictions)?;
    }
    if let Some(path) = options.write_link {
        link::write(path, links)?;
    }
    Ok(text)
}

/// The link of a group and its predictions; `None` when no row has data.
fn fit_group(
    group: &Group,
    mut rows: Vec<Row>,
    options: FitOptions<'_>,
) -> anyhow::Result<Option<(LinkModel, Vec<Prediction>)>> {
    rows.retain(|row| row.size_bytes > 0 && row.ranks > 1);
    // Out of place, an operation copies first, which no plan says. Where both were measured, the
    // plan is the one in place.
    let is_in_place = |row: &Row| row.form.as_deref() == Some("in_place");
    if rows.iter().any(is_in_place) {
        rows.retain(is_in_place);
    }
    if rows.is_empty() {
        return Ok(None);
    }
    let name = &group.operation;
    let operation = Operation::from_name(name)
        .with_context(|| format!("{name} is not an operation that can be simulated"))?;
    rows.sort_by_key(|row| row.size_bytes);
    let measured = rows
        .iter()
        .map(|row| measured(row, operation, options))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut sizes: Vec<usize> = measured.iter().map(|row| row.bytes).collect();
    sizes.dedup();
    let is_held_out = |bytes: usize| {
        let index = sizes.partition_point(|&size| size < bytes);
        options.hold_out == HoldOut::Half && index % 2 == 1 && index + 1 < sizes.len()
    };
    let seen: Vec<FitSample> = measured
        .iter()
        .filter(|row| !is_held_out(row.bytes))
        .map(|row| row.sample.clone())
        .collect();
    let model = LinkModel::fit(&seen, mover(&group.transport))?;
    let predictions = measured
        .iter()
        .map(|row| {
            let (measured_s, predicted_s) = (row.sample.time_s, model.predict_s(&row.sample)?);
            Ok(Prediction {
                operation: operation.name(),
                algorithm: row.algorithm.name(),
                transport: group.transport.clone(),
                ranks: group.ranks,
                size_bytes: row.bytes,
                measured_us: measured_s * 1e6,
                predicted_us: predicted_s * 1e6,
                error: predicted_s / measured_s - 1.0,
                held_out: is_held_out(row.bytes),
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Some((model, predictions)))
}

fn measured(row: &Row, operation: Operation, options: FitOptions<'_>) -> anyhow::Result<Measured> {
    let bytes = row.size_bytes;
    if row.wrong > 0 {
        let wrong = row.wrong;
        bail!("{wrong} elements of {bytes} bytes were wrong; measure again");
    }
    if row.transport.contains(" and ") {
        bail!(
            "{bytes} bytes went over {}, and a link is fitted to one of them: measure with \
             `--transport`, or one rank on each host",
            row.transport
        );
    }
    let algorithm = match row.algorithm.as_deref() {
        None | Some("auto") => options.algorithm.unwrap_or(operation.usual_algorithm()),
        Some(name) => name.parse()?,
    };
    let world_size = WorldSize::new(row.ranks)?;
    let size = operation.size(bytes, row.dtype, world_size);
    let chunk_bytes = row.chunk_bytes.unwrap_or(options.chunk_bytes);
    let chunk_elems_max = NonZeroUsize::new(chunk_bytes / row.dtype.size_bytes())
        .with_context(|| format!("chunks of {chunk_bytes} bytes hold no element"))?;
    let schedule = Schedule::new(ScheduleShape {
        collective: operation.collective(Rank::new(row.root.unwrap_or(0))),
        algorithm,
        world_size,
        count: size.count,
        chunk_elems_max,
        partition: Partition::Balanced,
        hosts: Hosts::one(world_size),
    })?;
    Ok(Measured {
        sample: FitSample {
            schedule,
            dtype: row.dtype,
            bytes: Bytes::new(bytes as u64),
            time_s: row.time_us * 1e-6,
        },
        algorithm,
        bytes,
    })
}

/// Ranks copy in and out of shared memory themselves; of sockets the system takes the most.
fn mover(transport: &str) -> Mover {
    match transport {
        "shm" | "local" => Mover::Processor,
        _ => Mover::Port,
    }
}

fn table(group: &Group, model: &LinkModel, rows: &[Prediction]) -> String {
    let mut text = format!("# {group}: {}\n", figures(model.link()));
    for [size, algorithm, measured, predicted, error] in [
        ["size", "algorithm", "measured", "predicted", "error"],
        ["(B)", "", "(us)", "(us)", "(%)"],
    ] {
        text += &format!("{size:>12} {algorithm:<17} {measured:>12} {predicted:>12} {error:>8}\n");
    }
    for row in rows {
        text += &format!(
            "{:>12} {:<17} {:>12.2} {:>12.2} {:>+8.1} {}\n",
            row.size_bytes,
            row.algorithm,
            row.measured_us,
            row.predicted_us,
            100.0 * row.error,
            if row.held_out { "held out" } else { "fitted" },
        );
    }
    let mut errors: Vec<f64> =
        rows.iter().filter(|row| row.held_out).map(|row| row.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let all = rows.len();
    text += &match errors.last() {
        Some(worst) => format!(
            "# {} of {all} rows held out: median error {:.1} %, worst {:.1} %\n",
            errors.len(),
            100.0 * median(&errors),
            100.0 * worst,
        ),
        None => {
            format!("# fitted to all {all} rows; --hold-out half shows how well it predicts\n")
        }
    };
    text
}

/// Of a sorted list that is not empty.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 30.0]), 2.0);
    }
}
