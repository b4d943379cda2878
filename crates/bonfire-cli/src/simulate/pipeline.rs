//! `bonfire simulate pipeline`: a pipeline's schedule in simulated time.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use bonfire_plan::pipeline::{
    Candidate, Costs, Demand, Kind, PassTimes, Schedule, Shape, Timing, choose, simulate,
};
use bonfire_plan::{Bytes, WorldSize};
use clap::Args;
use serde_json::json;

use super::gantt;
use crate::quantity::positive;
use crate::trace::{self, Event};

/// More passes than this are a file that no viewer opens.
const PASSES_MAX: usize = 1_000_000;

/// Predict the bubble of a pipeline: the part of the ranks' time in which they compute nothing.
///
/// Proves the schedule, runs it in simulated time, and prints the bubble and the most activations that each rank
/// holds at a time.
#[derive(Clone, Debug, Args)]
pub(super) struct PipelineArgs {
    /// Ranks of the pipeline, which has that many stages, or --chunks times as many
    #[arg(long, value_name = "P", required_unless_present = "read")]
    stages: Option<u32>,
    /// Micro-batches of a step
    #[arg(long, value_name = "M", required_unless_present = "read", value_parser = positive::<NonZeroU32>)]
    micro_batches: Option<NonZeroU32>,
    /// gpipe, 1f1b, interleaved, zb_h1 or zbv; or auto, the fastest with these --costs, below which the others are shown
    #[arg(long, value_name = "NAME", required_unless_present = "read")]
    schedule: Option<Wanted>,
    /// Stages on each rank; 2 of interleaved and zbv unless given, else 1; with auto the most, 2 unless given
    #[arg(long, value_name = "V", value_parser = positive::<NonZeroU32>)]
    chunks: Option<NonZeroU32>,
    /// Times of a forward pass, an input gradient and a weight gradient over the layers of a rank, in any unit
    #[arg(long, value_name = "F,I,W", default_value = "1,1,1", value_parser = times)]
    costs: PassTimes,
    /// Time of a message between two ranks, in the unit of --costs
    #[arg(long, value_name = "TIME", default_value = "0")]
    message: f64,
    /// Take the schedule from this file of CSV instead, one line for each rank, as PyTorch writes it
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["stages", "micro_batches", "schedule", "chunks"]
    )]
    read: Option<PathBuf>,
    /// Write the schedule as CSV, with messages and sums of gradients
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write what every rank did when, for chrome://tracing or ui.perfetto.dev; a unit of --costs is shown as 1 ms
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Draw what every rank did when as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A schedule by its name, or the fastest.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Named(Kind),
    Fastest,
}

impl FromStr for Wanted {
    type Err = <Kind as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Fastest),
            name => name.parse().map(Self::Named),
        }
    }
}

fn times(text: &str) -> Result<PassTimes, String> {
    let numbers: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    match numbers.as_deref() {
        Ok(&[forward_s, input_gradient_s, weight_gradient_s]) => {
            Ok(PassTimes { forward_s, input_gradient_s, weight_gradient_s })
        }
        _ => Err(format!("`{text}` is not three times such as 1,1.4,0.6")),
    }
}

impl PipelineArgs {
    pub(super) fn run(&self) -> anyhow::Result<String> {
        let (schedule, candidates) = self.schedule()?;
        let schedule = schedule.with_reductions();
        let costs = Costs::even(self.costs, &schedule, self.message)?;
        let timing = simulate(&schedule, &costs)?;
        let passes: usize = timing.spans.iter().map(Vec::len).sum();
        if passes > PASSES_MAX && (self.plot.is_some() || self.timeline.is_some()) {
            bail!("{passes} passes are too many to show; take fewer ranks or micro-batches");
        }
        let title = self.title(&schedule);
        if let Some(path) = &self.write {
            crate::save(path, &schedule.to_csv())?;
        }
        if let Some(path) = &self.timeline {
            write_timeline(path, &timing)?;
        }
        if let Some(path) = &self.plot {
            let caption = format!("{title}; {}", bubble(&timing));
            crate::save(path, &gantt::svg(&caption, schedule.ranks(), &timing))?;
        }
        Ok(text(&title, &timing) + &compared(&candidates))
    }

    /// The schedule, and those that it was chosen from, the fastest first.
    fn schedule(&self) -> anyhow::Result<(Schedule, Vec<Candidate>)> {
        if let Some(path) = &self.read {
            let schedule = Schedule::from_csv(&crate::read(path)?);
            let schedule = schedule.with_context(|| path.display().to_string())?;
            return Ok((schedule.with_messages()?, Vec::new()));
        }
        let (Some(ranks), Some(micro_batches), Some(wanted)) =
            (self.stages, self.micro_batches, self.schedule)
        else {
            bail!("--stages, --micro-batches and --schedule are needed");
        };
        let ranks = WorldSize::new(ranks)?;
        let two = NonZeroU32::MIN.saturating_add(1);
        let (shape, candidates) = match wanted {
            Wanted::Named(kind) => {
                let usual = match kind {
                    Kind::Interleaved | Kind::ZeroBubbleV => two,
                    Kind::GPipe | Kind::OneForwardOneBackward | Kind::ZeroBubbleH1 => {
                        NonZeroU32::MIN
                    }
                };
                let chunks = self.chunks.unwrap_or(usual);
                (Shape { kind, ranks, chunks, micro_batches }, Vec::new())
            }
            Wanted::Fastest => {
                // Of an activation each, and memory for all: how many a schedule holds is shown.
                let candidates = choose(&Demand {
                    ranks,
                    micro_batches,
                    chunks_max: self.chunks.unwrap_or(two),
                    times: self.costs,
                    message_s: self.message,
                    activations: Bytes::new(1),
                    activations_max: Bytes::new(u64::MAX),
                })?;
                let first = candidates.first().context("no schedule is possible")?;
                (first.shape, candidates)
            }
        };
        Ok((Schedule::new(shape)?.with_messages()?, candidates))
    }

    fn title(&self, schedule: &Schedule) -> String {
        let name = match (&self.read, schedule.shape()) {
            (None, Some(shape)) => shape.kind.name().to_owned(),
            (path, _) => path.iter().map(|path| path.display().to_string()).collect(),
        };
        let (ranks, stages) = (schedule.ranks(), schedule.stages());
        let micro_batches = schedule.micro_batches();
        format!("{name}: {ranks} ranks, {stages} stages, {micro_batches} micro-batches")
    }
}

fn bubble(timing: &Timing) -> String {
    format!("bubble {:.1} %", 100.0 * timing.bubble())
}

fn text(title: &str, timing: &Timing) -> String {
    // Sums of times have a last digit that means nothing.
    let makespan = (timing.makespan_s * 1e9).round() / 1e9;
    let mut text = format!("# {title}\n{}\nmakespan {makespan}\n", bubble(timing));
    text += "rank     busy  activations (at most, each of a stage)\n";
    for (rank, (busy_s, live)) in timing.busy_s.iter().zip(&timing.live_max).enumerate() {
        // Without any time, nobody waits.
        let share = busy_s / timing.makespan_s;
        let busy = 100.0 * if timing.makespan_s > 0.0 { share } else { 1.0 };
        text += &format!("{rank:4}  {busy:5.1} %  {live:11}\n");
    }
    text
}

/// Lines for those that a schedule was chosen from; none for one that was named.
fn compared(candidates: &[Candidate]) -> String {
    let mut text = String::new();
    if !candidates.is_empty() {
        text += "schedule     chunks    makespan   bubble\n";
    }
    for candidate in candidates {
        let Shape { kind, chunks, .. } = candidate.shape;
        let (name, bubble) = (kind.name(), 100.0 * candidate.bubble);
        let makespan = (candidate.makespan_s * 1e9).round() / 1e9;
        text += &format!("{name:<11}  {chunks:6}  {makespan:10}  {bubble:5.1} %\n");
    }
    text
}

/// One process, whose threads are the ranks.
fn write_timeline(path: &Path, timing: &Timing) -> anyhow::Result<()> {
    let name = |rank| trace::thread_name(0, rank, &format!("rank {rank}"));
    let names: Vec<_> = (0..timing.spans.len()).map(name).collect();
    let spans = timing.spans.iter().enumerate();
    let spans = spans.flat_map(|(rank, spans)| spans.iter().map(move |span| (rank, span)));
    let events = spans.map(|(tid, span)| Event {
        name: span.compute.to_string(),
        cat: "pass",
        ph: "X",
        pid: 0,
        tid,
        ts: span.start_s * 1e3,
        dur: (span.end_s - span.start_s) * 1e3,
        args: json!({ "stage": span.compute.stage, "micro_batch": span.compute.micro_batch }),
    });
    trace::write(path, &names, events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_three_numbers() {
        let read = times("1, 1.4,0.6").unwrap();
        assert_eq!(read.input_gradient_s, 1.4);
        for bad in ["", "1,1", "1,1,1,1", "1,1,x"] {
            assert!(times(bad).is_err(), "{bad}");
        }
    }
}
